"""Synthetic runs for the gate's tests: known ratios, known noise, every part replaceable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.accuracy import TaskScores
from harness.criteria import CellScope, load_policy, parse_criterion, resolve
from harness.divergence import Divergence, Documents
from harness.gate import GateInput
from harness.measurement import CellMeasurement, Distribution, Role, VisitMeasurement
from harness.verdict import Cost
from oracles.result import Finding, OracleResult

GATEABLE = frozenset({"ttft.p50", "ttft.p95", "tpot.p50", "tpot.p95", "output_throughput"})
CELLS = ("chat/c1", "chat/c8", "rag/c8")
REQUESTS = 64


def scopes(cells: Sequence[str] = CELLS, requests: int = REQUESTS) -> tuple[CellScope, ...]:
    return tuple(CellScope(cell, cell.partition("/")[0], GATEABLE, requests) for cell in cells)


def distribution(value: float, count: int = REQUESTS) -> Distribution:
    factors = {"mean": 1.0, "min": 0.8, "p50": 1.0, "p90": 1.2, "p95": 1.3, "p99": 1.5, "max": 2.0}
    return Distribution(count=count, stddev=1.0, **{name: factor * value for name, factor in factors.items()})


def cell(speed: Sequence[float] = (1.0, 1.0, 1.0), requests: int = REQUESTS) -> CellMeasurement:
    """A measured cell; `speed` divides TTFT and TPOT and multiplies the throughput."""
    return CellMeasurement(
        asked=requests,
        served=requests,
        failures={},
        duration_s=10.0,
        ttft_ms=distribution(50 / speed[0], requests),
        tpot_ms=distribution(10 / speed[1], requests),
        request_latency_ms=distribution(900.0, requests),
        output_tokens=6400,
        output_tokens_source="ids",
        output_throughput=640 * speed[2],
        output_throughput_per_user=100.0,
        request_throughput=6.4,
        goodput=6.0,
    )


def visits(
    speedup: float = 1.5,
    pairs: int = 6,
    noise: float = 0.02,
    cells: Sequence[str] = CELLS,
    seed: int = 0,
    requests: int = REQUESTS,
) -> tuple[VisitMeasurement, ...]:
    """Whole pairs in ABBA order: the candidate is `speedup` times the baseline in everything, give or take noise."""
    rng = np.random.default_rng(seed)
    out = []
    for pair in range(pairs):
        roles: tuple[Role, Role] = ("baseline", "candidate") if pair % 2 == 0 else ("candidate", "baseline")
        for position, role in enumerate(roles):
            factor = speedup if role == "candidate" else 1.0
            measured = {name: cell(factor * np.exp(rng.normal(0, noise / np.sqrt(2), 3)), requests) for name in cells}
            out.append(VisitMeasurement(pair=pair + 1, role=role, slot=2 * pair + position, cells=measured))
    return tuple(out)


def documents(n: int = 400, scale: float = 1.0, seed: int = 0, strata: Sequence[str] = ("en", "code")) -> Documents:
    """Scored answers with the skew of real margins; `scale` multiplies the margin."""
    rng = np.random.default_rng(seed)
    line = np.arange(n)
    return Documents(
        pair=1 + line % 6,
        line=line,
        item=np.array([f"item-{i}" for i in line]),
        stratum=np.array([strata[i % len(strata)] for i in line]),
        tokens=rng.integers(16, 97, n).astype(float),
        nats=scale * rng.gamma(0.5, 0.4, n),
    )


def margins(scale: float = 0.5, n: int = 400, **changes: Any) -> Divergence:
    arms = {
        "candidate": documents(n, scale, seed=1),
        "baseline": documents(n, 1.0, seed=2),
        "floor": documents(60, 0.1, seed=3),
    }
    return Divergence(**(arms | changes))


def tasks(n: int = 2000, lost: int = 0, gained: int = 0) -> TaskScores:
    baseline = (np.arange(n) % 2).astype(float)
    candidate = baseline.copy()
    candidate[np.flatnonzero(baseline == 1)[:lost]] = 0
    candidate[np.flatnonzero(baseline == 0)[:gained]] = 1
    item = np.arange(n).astype(str)
    return TaskScores(item, item, baseline, candidate)


def oracle(
    arm: str, *broken: str, name: str = "protocol", findings: Sequence[str] = ("loops", "usage")
) -> OracleResult:
    return OracleResult(
        oracle=name,
        arm=arm,  # type: ignore[arg-type]
        version=1,
        status="scored",
        findings=tuple(
            Finding(name=f, status="broken" if f in broken else "kept", sentence=f"About {f}.", n=100) for f in findings
        ),
    )


def gate_run(
    speedup: float = 1.5, pairs: int = 6, noise: float = 0.02, user: Sequence[str] = (), **changes: Any
) -> GateInput:
    """A whole run under beat-by-20 that passes as it stands."""
    cells = changes.pop("cells", scopes())
    requests = changes.pop("requests", REQUESTS)
    criteria = (*load_policy("beat-by-20"), *(parse_criterion(text) for text in user))
    run = GateInput(
        criteria=resolve(criteria, cells, frozenset({"token_margin", "tasks"})),
        cells=cells,
        visits=visits(speedup, pairs, noise, [scope.cell for scope in cells], requests=requests),
        pairs=(6, 12),
        mode="full",
        run="runs/test",
        cost=Cost(wall_s=600, requests=1000, output_tokens=64000),
        hashes={"plan": "0" * 64},
        required_oracles=frozenset({"protocol"}),
        oracles=(oracle("baseline"), oracle("candidate")),
        token_margin=margins(),
        tasks=tasks(),
    )
    return replace(run, **changes)


def with_cell(run: GateInput, pair: int, role: Role, name: str, measured: CellMeasurement | None) -> GateInput:
    """The run with one cell of one visit replaced, or removed."""
    out = []
    for visit in run.visits:
        if (visit.pair, visit.role) == (pair, role):
            cells = {key: value for key, value in visit.cells.items() if key != name}
            cells |= {name: measured} if measured is not None else {}
            visit = visit.model_copy(update={"cells": cells})  # noqa: PLW2901
        out.append(visit)
    return replace(run, visits=tuple(out))
