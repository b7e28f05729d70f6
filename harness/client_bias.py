"""Is the client fit for what it measured? The candidate's shape in every cell, calibrated, and the check on it.

A gate writes `calibration.json` once it knows how the candidate streams; what was calibrated before on this client
comes from the user's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import Field

from harness.calibration import MARGIN, METRICS, Bias, calibrate, client_fingerprint
from harness.calibration_visit import Shape
from harness.cells import Cell
from harness.measurement import CellMeasurement, read_visits
from harness.progress import Progress
from harness.run_store import RunStore, read_json, write_json
from harness.sending import MORE_CPU, check
from harness.traffic_plan import TrafficPlan
from harness.verdict import Check, Record, Status

CALIBRATION = "calibration.json"
MOST_STREAMS = 512  # of the mock, which waits with select()


class ClientBias(Record):
    """calibration.json: the client's bias at each arm's shape in each cell."""

    schema_version: int = 1
    client: dict[str, Any]
    margin: float = MARGIN
    cells: dict[str, dict[str, Bias]] = Field(description="cell -> arm -> bias")


def calibrate_run(
    plan: TrafficPlan, cells: Sequence[Cell], arms: Sequence[str], store: RunStore, progress: Progress
) -> list[Path]:
    """Calibrate the client for every arm's shape in every cell and write calibration.json."""
    visits = read_visits(store.root)
    shapes = {
        (cell.name, arm): shape
        for cell in cells
        for arm in arms
        if (shape := shape_of([v.cells[cell.name] for v in visits if v.role == arm and cell.name in v.cells], cell))
    }
    tokenizer = plan.tokenizer_path or Path()
    reuse = plan.connection_reuse
    biases = calibrate(list(shapes.values()), tokenizer, connection_reuse=reuse, progress=progress)
    found: dict[str, dict[str, Bias]] = {}
    for (cell_name, arm), bias in zip(shapes, biases, strict=True):
        found.setdefault(cell_name, {})[arm] = bias
    path = store.root / CALIBRATION
    write_json(path, ClientBias(client=client_fingerprint(reuse), cells=found))
    return [path]


def shape_of(met: Sequence[CellMeasurement], cell: Cell) -> Shape | None:
    """How an arm streamed in a cell: medians over its visits. None when it gave nothing to imitate."""
    ttft = [one.ttft_ms.p50 for one in met if one.ttft_ms.p50 is not None]
    tpot = [one.tpot_ms.p50 for one in met if one.tpot_ms.p50 is not None]
    if not ttft or not tpot:
        return None
    blocks = [block for one in met if (block := one.signals.get("tokens_per_event"))]
    flights = [flight for one in met if (flight := one.signals.get("achieved_concurrency"))]
    in_flight = cell.concurrency or max(1, round(median(flights) if flights else 1))
    lengths = [one.output_tokens / one.served for one in met if one.served]
    return Shape.imitating(
        ttft_ms=median(ttft),
        tpot_ms=median(tpot),
        concurrency=min(in_flight, cell.request_count, MOST_STREAMS),
        tokens_per_event=median(blocks) if blocks else 1,
        output_tokens=round(median(lengths)) if lengths else 256,
    )


def read_bias(root: Path) -> ClientBias | None:
    """calibration.json of a run; None when the client was not calibrated."""
    path = root / CALIBRATION
    return ClientBias.model_validate(read_json(path)) if path.is_file() else None


def bias_checks(cells: Sequence[Cell], found: ClientBias | None, *, required: bool) -> tuple[Check, ...]:
    """`client-bias@cell` for every cell in which the candidate streamed, judged by what its profile gates.

    A run that must be calibrated and was not is INVALID as a whole.
    """
    if found is None:
        reason = "The client was not calibrated at the candidate's shape."
        hint = "Judge it by the enginegate that drove it, or drive it again."
        return (check("client-bias", None, broken=True, n=0, reason=reason, hint=hint),) if required else ()
    return tuple(
        _check(cell, found.cells[cell.name]["candidate"], found.margin)
        for cell in cells
        if "candidate" in found.cells.get(cell.name, {})
    )


def bias_notes(cells: Sequence[Cell], found: ClientBias | None) -> dict[tuple[str, str], list[str]]:
    """(arm, cell) -> why a sweep's number there must not be published."""
    by_name: Mapping[str, Cell] = {cell.name: cell for cell in cells}
    notes: dict[tuple[str, str], list[str]] = {}
    for name, arms in (found.cells if found else {}).items():
        for arm, bias in arms.items():
            judged = _check(by_name[name], bias, found.margin if found else MARGIN)
            if judged.status is not Status.PASS:
                notes.setdefault((arm, name), []).append(judged.reason)
    return notes


def _check(cell: Cell, bias: Bias, margin: float) -> Check:
    """INVALID when the client adds more than the margin to something that is gated here, or could not be calibrated."""
    families = {metric.partition(".")[0] for metric in cell.profile.gateable}
    judged = [metric for metric in METRICS if metric.partition(".")[0] in families] or ["tpot.p50"]
    over = bias.over(margin, judged)
    broken = bool(over) or bias.starved or bias.failed > 0
    errors = {metric: abs(error) for metric in judged if (error := bias.error(metric)) is not None}
    worst = max(errors, key=lambda metric: errors[metric])
    shape = bias.shape
    where = f"c{shape.concurrency}, {shape.offered_tokens_per_s:,.0f} tokens/s"
    if bias.starved or bias.failed:
        reason = bias.sentence(margin)
    elif over:
        told = ", ".join(f"{metric} {error:+.1%}" for metric, error in over.items())
        reason = f"At this shape ({where}) this client itself is off by {told}; {margin:.0%} is allowed."
    else:
        reason = f"At this shape ({where}) this client is off by {errors[worst]:.1%} at most ({worst})."
    return check(
        "client-bias",
        cell.name,
        broken=broken,
        observed=errors[worst],
        required=margin,
        n=bias.requests,
        evidence=(CALIBRATION,),
        reason=reason,
        hint=MORE_CPU,
    )
