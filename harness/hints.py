"""Where to look next: for a check that stands in the way, the phase its numbers point to. Pure.

A hint cites numbers and names a phase (prefill, decode, scheduler, cache, admission); it never prescribes code.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.verdict import Check, Status

SAME = 0.05  # ratios closer than this are called equal


def with_hint(check: Check, checks: Sequence[Check], cached_share: dict[str, tuple[float, float]]) -> Check:
    """The check with a hint, unless it passes or carries one.

    Args:
        check: the one to explain.
        checks: all checks of the run, for comparison between loads and metrics.
        cached_share: cell -> share of prompt tokens served from cache (baseline, candidate), where known.
    """
    if check.status is Status.PASS or check.hint or check.cell is None:
        return check
    text = _hint(check, checks, cached_share.get(check.cell))
    return check.model_copy(update={"hint": text}) if text else check


def _hint(check: Check, checks: Sequence[Check], cached: tuple[float, float] | None) -> str:
    if check.metric == "served":
        return f"Admission: {check.reason}"
    if check.observed is None or check.unit != "x":
        return ""
    metric = check.metric.partition(".")[0]
    if metric == "ttft":
        return _cache(check, cached) or _tail(check, checks, "prefill behind other work") or _prefill(check, checks)
    if metric in {"tpot", "output_throughput_per_user"}:
        return _tail(check, checks, "stalls between tokens, such as a prefill in the same step") or _decode(
            check, checks
        )
    if metric in {"output_throughput", "throughput_per_gpu", "request_throughput", "goodput"}:
        return _throughput(check, checks)
    return _latency(check, checks)


def _cache(check: Check, cached: tuple[float, float] | None) -> str:
    if cached is None or cached[0] - cached[1] < 0.1:
        return ""
    return (
        f"Cache: the baseline served {cached[0]:.0%} of the prompt tokens in {check.cell} from its prefix cache, "
        f"the candidate {cached[1]:.0%}."
    )


def _tail(check: Check, checks: Sequence[Check], cause: str) -> str:
    """The median is better than the tail: something uneven."""
    metric, _, stat = check.metric.partition(".")
    median = _find(checks, f"{metric}.p50", check.cell)
    if stat == "p50" or median is None or check.observed is None or median < check.observed + SAME:
        return ""
    return f"Scheduler: {metric} is {median:.2f}x at p50 but {check.observed:.2f}x at {stat} in {check.cell}: {cause}?"


def _prefill(check: Check, checks: Sequence[Check]) -> str:
    loads = _by_load(check, checks)
    lightest = loads[0]
    if check.cell != lightest[0] and lightest[1] > (check.observed or 0) + SAME:
        return (
            f"Scheduler or admission: {check.metric} is {lightest[1]:.2f}x in {lightest[0]} "
            f"but {check.observed:.2f}x in {check.cell}: requests wait before their prefill."
        )
    return f"Prefill: {_across(loads)} for {check.metric}, so it is not load alone; {_medians(check)}."


def _decode(check: Check, checks: Sequence[Check]) -> str:
    loads = _by_load(check, checks)
    lightest = loads[0]
    if check.cell != lightest[0] and lightest[1] > (check.observed or 0) + SAME:
        return (
            f"Scheduler: {check.metric} is {lightest[1]:.2f}x in {lightest[0]} but {check.observed:.2f}x in "
            f"{check.cell}: a decode step grows faster with the batch than the baseline's."
        )
    return f"Decode: {_across(loads)} for {check.metric}; {_medians(check)}."


def _throughput(check: Check, checks: Sequence[Check]) -> str:
    tpot, ttft = (_find(checks, f"{metric}.p50", check.cell) for metric in ("tpot", "ttft"))
    if tpot is not None and check.observed is not None and tpot > check.observed + SAME:
        other = f" (ttft.p50 {ttft:.2f}x)" if ttft is not None else ""
        return (
            f"Scheduler or admission: tokens flow at {tpot:.2f}x (tpot.p50) but {check.metric} is "
            f"{check.observed:.2f}x in {check.cell}{other}: it runs fewer requests at once, or starts them later."
        )
    return f"Decode: {_across(_by_load(check, checks))} for {check.metric}; {_medians(check)}."


def _latency(check: Check, checks: Sequence[Check]) -> str:
    parts = [(m, _find(checks, f"{m}.p50", check.cell)) for m in ("ttft", "tpot")]
    known = [f"{m}.p50 {ratio:.2f}x" for m, ratio in parts if ratio is not None]
    return f"{' and '.join(known)} in {check.cell}: the slower of prefill and decode decides." if known else ""


def _find(checks: Sequence[Check], metric: str, cell: str | None) -> float | None:
    for check in checks:
        if check.metric == metric and check.cell == cell and check.unit == "x":
            return check.observed
    return None


def _by_load(check: Check, checks: Sequence[Check]) -> list[tuple[str, float]]:
    """(cell, ratio) of the same metric in the same profile, lightest load first."""
    profile = (check.cell or "").rpartition("/")[0]
    found = [
        (other.cell, other.observed)
        for other in checks
        if other.cell and other.observed is not None and other.unit == "x" and other.metric == check.metric
        and other.cell.rpartition("/")[0] == profile
    ]  # fmt: skip
    return sorted(found, key=lambda item: float(item[0].rpartition("/")[2][1:]))


def _across(loads: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{ratio:.2f}x in {cell}" for cell, ratio in loads[:4])


def _medians(check: Check) -> str:
    if check.baseline is None or check.candidate is None:
        return "no medians"
    return f"baseline {check.baseline:.4g} and candidate {check.candidate:.4g} {check.value_unit} in {check.cell}"
