"""Run directories made without an engine, in the shape of docs/files.md, judged by the real gate.

Only the requests are invented (seeded); measurements, checks and the verdict come from the product's own code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from harness.criteria import CellScope, load_policy, parse_criterion, resolve
from harness.divergence import Divergence, Documents
from harness.gate import GateInput, decide
from harness.measurement import Role, Slo, VisitMeasurement, measure_visit
from harness.raw_export import SCHEMA
from harness.verdict import Check, Cost, Family, Status, Verdict
from oracles.result import Finding, Metric, OracleResult

ROLES: tuple[Role, ...] = get_args(Role)
WORDS = (
    "the",
    "engine",
    "answers",
    "with",
    "calm",
    "words",
    "about",
    "rivers",
    "stones",
    "light",
    "and",
    "slow",
    "work",
)
GATEABLE = ("ttft.p50", "ttft.p95", "tpot.p50", "tpot.p95", "output_throughput")
STRATA = ("en-chat", "code", "zh", "maths")
STARTED = 1_790_000_000.0


@dataclass(frozen=True)
class Made:
    """What to invent. `speedup`: true speed-up by metric (ttft, tpot) or by `profile:ttft`."""

    profiles: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"chat-steady": ("c1", "c8", "c32"), "decode-hard": ("c1", "c8")}
    )
    speedup: dict[str, float] = field(default_factory=lambda: {"ttft": 1.4, "tpot": 1.45})
    noise: float = 0.02
    pairs: int = 6
    planned: tuple[int, ...] = (6, 12)
    requests: int = 60
    margin: dict[str, float] = field(default_factory=lambda: {"baseline": 0.02, "candidate": 0.02, "floor": 0.004})
    oracle: bool = True
    mode: Literal["full", "quick"] = "full"
    invalid: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    failures: float = 0.0
    text: str | None = None
    seed: int = 7

    @property
    def cells(self) -> list[str]:
        return [f"{profile}/{load}" for profile, loads in self.profiles.items() for load in loads]


def make_run(root: Path, made: Made, *, verdict: bool = True) -> Path:
    """Write a whole run directory under `root` and return it."""
    rng = np.random.default_rng(made.seed)
    visits = [_visit(root, made, pair, role, rng) for pair in range(1, made.pairs + 1) for role in ROLES]
    _plan(root, made)
    documents = (
        {arm: _tokens(root, made, arm, rng) for arm in ("baseline", "candidate", "floor")} if made.oracle else {}
    )
    oracles = _oracles(root, made) if verdict else ()
    if verdict:
        decided = _decide(made, visits, documents, oracles)
        (root / "verdict.json").write_text(decided.model_dump_json())
    return root


def _visit(root: Path, made: Made, pair: int, role: Role, rng: np.random.Generator) -> VisitMeasurement:
    first = ("baseline", "candidate")[(pair + pair // 2) % 2]
    slot = 2 * (pair - 1) + (role != first)
    folder = root / "pairs" / f"{pair:02d}" / role
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        row for line, cell in enumerate(made.cells) for row in _rows(made, pair, role, cell, line * made.requests, rng)
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    pq.write_table(table, folder / "requests.parquet")
    slos = {cell: Slo(ttft_ms=800, tpot_ms=60) for cell in made.cells}
    measurement = measure_visit(table, pair=pair, role=role, slot=slot, slos=slos)
    (folder / "measurements.json").write_text(measurement.model_dump_json())
    start = STARTED + 95 * slot
    record = {
        "pair": pair,
        "role": role,
        "slot": slot,
        "started_at": start,
        "ended_at": start + 90,
        "exit_code": 0,
        "load_average_1m": 0.4,
    }
    (folder / "visit.json").write_text(json.dumps(record))
    return measurement


def _rows(made: Made, pair: int, role: Role, cell: str, first: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    profile, _, load = cell.rpartition("/")
    amount = float(load[1:])
    wobble = np.exp(rng.normal(0, made.noise / np.sqrt(2), 2))
    faster = [_speedup(made, profile, name) if role == "candidate" else 1.0 for name in ("ttft", "tpot")]
    ttft = 60 * amount**0.55 * wobble[0] / faster[0]
    tpot = 14 * amount**0.3 * wobble[1] / faster[1]
    same = np.random.default_rng([pair, first])  # both arms of a pair see the same requests
    spread = 0.35 * float(np.exp(rng.normal(0, made.noise)))
    rows, clock = [], 0.0
    for index in range(made.requests):
        tokens = int(same.integers(24, 64))
        t = ttft * float(np.exp(same.normal(0, spread)))
        each = tpot * float(np.exp(same.normal(0, 0.08)))
        events = t + each * np.arange(tokens)
        failed = made.failures and role == "candidate" and same.random() < made.failures
        words = [WORDS[int(same.integers(len(WORDS)))] for _ in range(tokens)]
        if role == "candidate" and index % 3 == 0:
            words[tokens // 2 :] = words[tokens // 2 :][::-1]
        rows.append(
            {
                "line": first + index,
                "cell": cell,
                "kind": "load",
                "item": f"{profile}-{pair}-{first + index}",
                "stratum": STRATA[index % len(STRATA)],
                "status": "http_error" if failed else "ok",
                "error": "503 busy" if failed else "",
                "http_status": 503 if failed else 200,
                "start_s": clock,
                "credit_lag_ms": 0.2,
                "ttft_ms": None if failed else t,
                "tpot_ms": None if failed else each,
                "request_latency_ms": None if failed else float(events[-1]),
                "output_tokens": None if failed else tokens,
                "output_tokens_source": "none" if failed else "ids",
                "usage_prompt_tokens": 120,
                "usage_completion_tokens": tokens,
                "cached_tokens": 0,
                "retokenised_tokens": tokens,
                "finish_reason": None if failed else "stop",
                "done": not failed,
                "text": ""
                if failed
                else (made.text if made.text is not None and role == "candidate" else " ".join(words)),
                "reasoning": "",
                "token_ids": list(range(tokens)),
                "token_logprobs": None,
                "event_ms": [] if failed else events.tolist(),
                "event_tokens": [] if failed else [1] * tokens,
                "prompt_tokens_reference": 120,
            }
        )
        clock += float(events[-1]) / 1e3 / amount
    return rows


def _speedup(made: Made, profile: str, name: str) -> float:
    return made.speedup.get(f"{profile}:{name}", made.speedup.get(name, 1.0))


def _plan(root: Path, made: Made) -> None:
    uses = [{"name": name, "concurrency": [int(load[1:]) for load in loads]} for name, loads in made.profiles.items()]
    plan = {
        "schema_version": 1,
        "model": "SmolLM2-135M-Instruct",
        "seed": made.seed,
        "policy": "beat-by-20",
        "pairs": list(made.planned),
        "reference": {"path": "models/smollm2-135m-bf16", "dtype": "bfloat16"} if made.oracle else None,
        "endpoints": {
            "baseline": {"url": "http://127.0.0.1:8000", "api": "chat", "gpus": 0},
            "candidate": {"url": "http://127.0.0.1:8001", "api": "chat", "gpus": 0},
        },
        "profiles": uses,
        "criteria": ["ttft.p95 <= 2000ms"],
    }
    (root / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    environment = {
        "enginegate": "0.1.0",
        "git_revision": "abd058412345",
        "git_dirty": False,
        "python": "3.11.2",
        "versions": {"aiperf": "0.13.0", "numpy": "2.3.0"},
        "platform": "Linux",
        "memory_gib": 24.0,
        "cpu": {"model": "Some CPU", "count": 2, "load_average": [0.2, 0.3, 0.2]},
        "gpus": [],
    }
    (root / "environment.json").write_text(json.dumps(environment))


def _tokens(root: Path, made: Made, arm: str, rng: np.random.Generator) -> Documents:
    """tokens.parquet of one arm, and the same as the gate reads it."""
    rows = []
    for pair in range(1, made.pairs + 1):
        for place, cell in enumerate(made.cells):
            for index in range(made.requests if arm != "floor" else 6):
                line, tokens = place * made.requests + index, int(rng.integers(24, 64))
                off = rng.random(tokens) < min(0.5, made.margin[arm] / 0.8)
                margins = np.where(off, rng.exponential(0.8, tokens), 0.0)
                rows.append(
                    {
                        "pair": pair,
                        "line": line,
                        "cell": cell,
                        "item": f"{cell.rpartition('/')[0]}-{pair}-{line}",
                        "stratum": STRATA[index % len(STRATA)],
                        "prompt_tokens": 120,
                        "tokens": tokens,
                        "margin_sum": float(margins.sum()),
                        "margin_max": float(margins.max()),
                        "margin_first64": float(margins[:64].sum()),
                        "top1": int((margins == 0).sum()),
                        "nll_sum": float(tokens * 0.9),
                        "entropy_sum": float(tokens * 0.9),
                        "flips_inexcusable": int((margins > 0.5).sum()),
                        "loop_share": 0.02,
                        "margins": margins.astype("float32").tolist(),
                        "logprobs": (-margins).astype("float32").tolist(),
                        "ranks": (margins > 0).astype("int32").tolist(),
                        "ids": list(range(tokens)),
                        "ids_source": "engine",
                    }
                )
    folder = root / "oracles" / arm
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "tokens.parquet")
    column = {
        key: np.array([row[key] for row in rows]) for key in ("pair", "line", "item", "stratum", "tokens", "margin_sum")
    }
    return Documents(
        column["pair"],
        column["line"],
        column["item"],
        column["stratum"],
        column["tokens"].astype(float),
        column["margin_sum"].astype(float),
    )


def _oracles(root: Path, made: Made) -> tuple[OracleResult, ...]:
    results = []
    names = ("finish-reason", "usage-tokens", "loops", "stop-strings", "burst", "utf-8", "length")
    for arm in ROLES:
        findings = []
        for name in names:
            broken = arm == "candidate" and name in made.broken
            findings.append(
                Finding(
                    name=name,
                    status="broken" if broken else "kept",
                    n=400,
                    count=37 if broken else 0,
                    detectable_rate=0.0075,
                    sentence=f"{37 if broken else 0} of 400 answers broke {name.replace('-', ' ')}.",
                )
            )
        results.append(OracleResult(oracle="protocol", arm=arm, version=1, status="scored", findings=tuple(findings)))
        if made.oracle:
            value = made.margin[arm]
            metrics = {"token_margin": Metric(value=value, unit="nats", n=400, ci_low=value * 0.9, ci_high=value * 1.1)}
            results.append(OracleResult(oracle="tokens", arm=arm, version=1, status="scored", metrics=metrics))
    for result in results:
        folder = root / "oracles" / result.arm
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{result.oracle}.json").write_text(result.model_dump_json())
    return tuple(results)


def _decide(
    made: Made, visits: list[VisitMeasurement], documents: dict[str, Documents], oracles: tuple[OracleResult, ...]
) -> Verdict:
    scopes = tuple(
        CellScope(f"{profile}/{load}", profile, frozenset(GATEABLE), made.requests)
        for profile, loads in made.profiles.items()
        for load in loads
    )
    absolute = (parse_criterion("ttft.p95 <= 2000ms"),) if made.requests >= 59 else ()  # a p95 needs that many
    criteria = (*load_policy("beat-by-20"), *absolute)
    run_metrics = frozenset({"token_margin"})
    kept = tuple(c for c in criteria if c.metric not in ("throughput_per_gpu", "goodput", "request_latency"))
    return decide(
        GateInput(
            criteria=resolve(kept, scopes, run_metrics),
            cells=scopes,
            visits=tuple(visits),
            pairs=made.planned,
            mode=made.mode,
            run="runs/made",
            cost=Cost(wall_s=1140.0, requests=2 * made.pairs * made.requests * len(scopes), output_tokens=52000),
            hashes={"plan": "0" * 64, "judge": "1" * 64},
            required_oracles=frozenset({"protocol"}),
            oracles=oracles,
            validity=_validity(made),
            token_margin=Divergence(documents["candidate"], documents["baseline"], documents["floor"])
            if documents
            else None,
        ),
        power_draws=200,
    )


def _validity(made: Made) -> tuple[Check, ...]:
    checks = []
    for name in ("aiperf-complete", "same-cache", "same-length", "client-bias"):
        for cell in [None] if name == "aiperf-complete" else made.cells:
            bad = name in made.invalid
            checks.append(
                Check(
                    check=f"{name}@{cell}" if cell else name,
                    family=Family.VALIDITY,
                    status=Status.INVALID if bad else Status.PASS,
                    criterion=name,
                    metric=name,
                    cell=cell,
                    n=made.pairs,
                    reason=f"{name} is {'broken: 14 % of prompt tokens differ' if bad else 'as it should be'}.",
                    hint="Switch prefix caching off in both engines." if bad else "",
                )
            )
    return tuple(checks)
