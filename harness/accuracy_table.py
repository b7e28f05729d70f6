"""One line an endpoint: what the oracles say of it, with intervals, and whether it can be told from the floor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.accuracy import Judged, judge_divergence
from harness.divergence import Divergence
from harness.errors import ExitCode
from harness.foreign import baseline_checks
from harness.judge import read_documents
from harness.verdict import Finite, Record, Status
from oracles.result import Metric, OracleResult

BAR = 1.05
STATUS_ORDER = (Status.FAIL, Status.INVALID, Status.INCONCLUSIVE, Status.PASS)
KLD = ("kld_mean", "kld_p99", "kld_max", "delta_p_rms", "same_top", "ppl_ratio", "covered_mass")
TOKENS = ("margin", "margin_p99", "top1", "nll", "entropy", "excess_nll", "flips_inexcusable", "round_trip")


class EndpointAccuracy(Record):
    """One endpoint. `against_first` judges `token_margin <= 1.05x` with the first endpoint as the baseline."""

    name: str
    tokens: int = Field(description="output tokens that were scored")
    answers: int
    metrics: dict[str, Metric]
    broken: tuple[str, ...] = Field((), description="contracts it broke, each in a sentence")
    notes: tuple[str, ...] = ()
    status: Status
    reason: str
    ratio: Finite | None = Field(None, description="margin over the larger of the first endpoint's and the floor's")
    ratio_low: Finite | None = None
    ratio_high: Finite | None = None


class AccuracyTable(Record):
    """accuracy.json of `enginegate verify`."""

    schema_version: int = 1
    floor: dict[str, Metric]
    endpoints: tuple[EndpointAccuracy, ...]

    @property
    def exit_code(self) -> ExitCode:
        """The worst endpoint's."""
        statuses = {endpoint.status for endpoint in self.endpoints}
        return ExitCode[next(status for status in STATUS_ORDER if status in statuses).name]


def accuracy_table(root: Path, names: Sequence[str]) -> AccuracyTable:
    """Read oracles/<name>/*.json of a verify run."""
    floor = _result(root / "oracles" / "floor" / "tokens.json")
    return AccuracyTable(floor=floor.metrics, endpoints=tuple(_endpoint(root, name, names[0]) for name in names))


def as_tables(table: AccuracyTable) -> list[Any]:
    """Rich tables: the timed tokens under the reference, and what the servers say of their own probabilities."""
    from rich.table import Table

    tokens = Table(title="Timed tokens under the reference: nats a token, 95 % intervals", title_justify="left")
    for column in ("endpoint", "margin", "interval", "times the first", "top-1", "flips", "-ln p", "tokens", "status"):
        tokens.add_column(column, justify="left" if column in {"endpoint", "status"} else "right")
    for one in table.endpoints:
        share = _shown(one.ratio, "x"), f"{_shown(one.ratio_low)} to {_shown(one.ratio_high)}"
        cells = [_value(one.metrics.get(key), 4) for key in ("top1", "flips_inexcusable", "nll")]
        margin = one.metrics.get("margin")
        tokens.add_row(
            one.name,
            _value(margin),
            _interval(margin),
            f"{share[0]} ({share[1]})",
            *cells,
            f"{one.tokens:,}",
            one.status,
        )
    floor = [_value(table.floor.get(key), 4) for key in ("top1", "flips_inexcusable", "nll")]
    margin = table.floor.get("margin")
    count = f"{margin.n:,}" if margin else "-"
    tokens.add_row("noise floor", _value(margin), _interval(margin), "", *floor, count, "")
    return [tokens, *_logit_tables(table)]


def _logit_tables(table: AccuracyTable) -> list[Any]:
    """One table a phase that some server answered."""
    from rich.table import Table

    tables = []
    for phase in ("prefill", "decode"):
        rows = [one for one in table.endpoints if f"kld_mean@{phase}" in one.metrics]
        if not rows:
            continue
        made = Table(title=f"Log-probabilities, {phase}: KL divergence in nats, a lower bound", title_justify="left")
        for column in ("endpoint", "mean", "interval", "p99", "max", "same top", "RMS dp", "PPL ratio", "covered", "n"):
            made.add_column(column, justify="left" if column == "endpoint" else "right")
        for one in rows:
            mean = one.metrics[f"kld_mean@{phase}"]
            keys = ("kld_p99", "kld_max", "same_top", "delta_p_rms", "ppl_ratio", "covered_mass")
            cells = [_value(one.metrics.get(f"{key}@{phase}"), 4) for key in keys]
            made.add_row(one.name, _value(mean), _interval(mean), *cells, f"{mean.n:,}")
        tables.append(made)
    return tables


def _value(metric: Metric | None, digits: int = 5) -> str:
    return "-" if metric is None or metric.value is None else f"{metric.value:.{digits}f}"


def _interval(metric: Metric | None) -> str:
    if metric is None or metric.ci_low is None or metric.ci_high is None:
        return "-"
    return f"{metric.ci_low:.5f} to {metric.ci_high:.5f}"


def _shown(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.3g}{unit}"


def _endpoint(root: Path, name: str, first: str) -> EndpointAccuracy:
    folder = root / "oracles" / name
    results = {oracle: _result(folder / f"{oracle}.json") for oracle in ("tokens", "logits", "drift", "protocol")}
    metrics = {key: results["tokens"].metrics[key] for key in TOKENS if key in results["tokens"].metrics}
    metrics |= {
        key: value
        for key, value in results["logits"].metrics.items()
        if key.partition("@")[0] in KLD or key.startswith(("k3", "seed_", "logprob_")) or key == "ids_compared"
    }
    broken = tuple(f"{f.name}: {f.sentence}" for f in results["protocol"].findings if f.status == "broken")
    judged = _judged(root, name, first, results["tokens"])
    status = Status.FAIL if broken else judged.status
    return EndpointAccuracy(
        name=name,
        tokens=metrics["nll"].n if "nll" in metrics else 0,
        answers=_answers(results["tokens"]),
        metrics=metrics,
        broken=broken,
        notes=tuple(note for result in results.values() for note in (*result.notes, *_why(result))),
        status=status,
        reason=f"It broke {broken[0]}" if broken else judged.reason,
        ratio=judged.observed,
        ratio_low=judged.low,
        ratio_high=judged.high,
    )


def _judged(root: Path, name: str, first: str, tokens: OracleResult) -> Judged:
    if tokens.status != "scored":
        return Judged(Status.INVALID, tokens.reason)
    paths = [root / "oracles" / arm / "tokens.parquet" for arm in (name, first, "floor")]
    if not paths[1].is_file():
        return Judged(Status.INVALID, f"{first}, which the others are set against, was not scored.")
    candidate, baseline = (read_documents(path) for path in paths[:2])
    floor = read_documents(paths[2]) if paths[2].is_file() else None
    judged = judge_divergence(Divergence(candidate=candidate, baseline=baseline, floor=floor), BAR)
    if name != first:
        return judged
    foreign = baseline_checks(Divergence(candidate=baseline, baseline=baseline, floor=floor), None)
    if foreign:
        return Judged(Status.FAIL, foreign[0].reason.replace("The baseline", name), judged.observed)
    told = f"The others are set against it. {judged.reason}"
    return Judged(Status.PASS, told, judged.observed, judged.low, judged.high)


def _answers(result: OracleResult) -> int:
    share = result.metrics.get("scored_share")
    return 0 if share is None or share.value is None else round(share.value * share.n)


def _why(result: OracleResult) -> tuple[str, ...]:
    return (f"{result.oracle} not scored: {result.reason}",) if result.status == "unscored" else ()


def _result(path: Path) -> OracleResult:
    if path.is_file():
        return OracleResult.model_validate_json(path.read_bytes())
    reason = "It was not asked for."
    return OracleResult(oracle=path.stem, arm="candidate", version=1, status="unscored", reason=reason)
