"""The task oracle's numbers: scores, what could not be graded and why, flips between the arms, signs of memorising."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

from oracles.atomic import write_table
from oracles.evidence import ALPHA
from oracles.result import Finding, Metric, OracleResult
from oracles.task_answers import WRONG

VERSION = 1
MEMORY_GAP_PT = 5.0  # smaller gaps between the public and the sealed split are no accusation
FLOOR, CEILING = 0.02, 0.98
ALARM = 0.05  # mid-p below which lost answers are called a likely regression
Arm = Literal["baseline", "candidate", "reference"]
Kind = Literal["tasks", "options"]
Values = npt.NDArray[np.float64]

FLIPS = pa.schema(
    [
        ("item", pa.string()),
        ("task", pa.string()),
        ("direction", pa.string()),
        ("repeat", pa.int32()),
        ("pair", pa.int32()),
        ("line", pa.int32()),
        ("question", pa.string()),
        ("target", pa.string()),
        ("baseline_extracted", pa.string()),
        ("candidate_extracted", pa.string()),
        ("baseline_answer", pa.string()),
        ("candidate_answer", pa.string()),
        ("baseline_fate", pa.string()),
        ("candidate_fate", pa.string()),
    ]
)


def summarise(
    arm: Arm,
    grades: pd.DataFrame,
    other: pd.DataFrame,
    inputs: dict[str, str],
    *,
    oracle: Kind = "tasks",
    reference: pd.DataFrame | None = None,
) -> OracleResult:
    """One arm's tasks.json or options.json from its grades (columns of GRADES).

    `other` are the other arm's, `reference` those of a reference server, where it was asked.
    """
    if not len(grades):
        return unscored(arm, "The run asked no task item.", inputs, oracle=oracle)
    metrics = {"score": _score(grades)}
    metrics |= {f"score.{name}": _score(rows) for name, rows in grades.groupby("task")}
    if grades["split"].nunique() > 1:
        metrics |= {f"score.{name}": _score(rows) for name, rows in grades.groupby("split")}
    fates = (*WRONG, "unparsed") if oracle == "tasks" else ("refused",)
    metrics |= {fate: _share(grades["fate"] == fate) for fate in fates}
    if oracle == "tasks":
        metrics["at_limit"] = _share(grades["at_limit"])
        metrics["stop_kept"] = _share(grades["stop_kept"])
        metrics |= _thinking(grades, other)
        metrics |= {} if reference is None else _length(grades, reference)
    notes = _notes(grades)
    if arm == "candidate":
        compared = _differences(other, grades)
        metrics |= compared
        notes += _alarm(compared)
    findings = (_memorised(grades, other) if arm == "candidate" else _not_compared(),)
    return OracleResult(
        oracle=oracle,
        arm=arm,
        version=VERSION,
        status="scored",
        metrics=metrics,
        findings=findings if oracle == "tasks" and arm != "reference" else (),  # options have no sealed split
        inputs=inputs,
        notes=notes,
    )


def unscored(arm: Arm, reason: str, inputs: dict[str, str] | None = None, *, oracle: Kind = "tasks") -> OracleResult:
    """The oracle did not score, and why."""
    return OracleResult(oracle=oracle, arm=arm, version=VERSION, status="unscored", reason=reason, inputs=inputs or {})


def flips(baseline: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    """Answers on which the arms differ in score (columns of FLIPS), the lost ones first."""
    keys = ["item", "repeat"]
    both = candidate.merge(baseline, on=keys, suffixes=("", "_n"), validate="one_to_one")
    both = both[both["score"] != both["score_n"]]
    rows = pd.DataFrame({key: both[key] for key in (*keys, "task", "pair", "line", "question", "target")})
    rows["direction"] = np.where(both["score"] < both["score_n"], "lost", "gained")
    for name in ("extracted", "answer", "fate"):
        rows[f"baseline_{name}"], rows[f"candidate_{name}"] = both[f"{name}_n"], both[name]
    return rows.sort_values(["direction", "task", "item"], ascending=[False, True, True]).reset_index(drop=True)


def write_flips(rows: pd.DataFrame, path: Path) -> None:
    """Write flips.parquet."""
    write_table(path, pa.Table.from_pandas(rows, schema=FLIPS, preserve_index=False))


def _score(rows: pd.DataFrame) -> Metric:
    """Mean in per cent over items, two-sided 95 % interval clustered (Miller 2024, arXiv 2411.00640)."""
    items = rows.groupby("item").agg(score=("score", "mean"), cluster=("cluster", "first"))
    found = _mean(items["score"], items["cluster"], "%")
    if found.ci_low is None or found.ci_high is None:
        return found
    return found.model_copy(update={"ci_low": max(0.0, found.ci_low), "ci_high": min(100.0, found.ci_high)})


def _differences(baseline: pd.DataFrame, candidate: pd.DataFrame) -> dict[str, Metric]:
    """Candidate minus baseline by item in points, over all and by task; how likely chance loses so many answers."""
    table = paired(baseline, candidate).dropna()
    table["gain"] = table["candidate"] - table["baseline"]
    metrics = {"difference": _mean(table["gain"], table["cluster"], "pt")}
    metrics |= {f"difference.{name}": _mean(r["gain"], r["cluster"], "pt") for name, r in table.groupby("task")}
    lost, gained = int((table["gain"] < 0).sum()), int((table["gain"] > 0).sum())
    # One-sided mid-p McNemar: half the chance of what was seen, and all of the chance of more lost.
    p = stats.binom.sf(lost, lost + gained, 0.5) + stats.binom.pmf(lost, lost + gained, 0.5) / 2
    return metrics | {"lost_p": Metric(value=float(p), unit="p", n=lost + gained)}


def _mean(values: pd.Series[Any], cluster: pd.Series[Any], unit: str) -> Metric:
    """A hundredfold mean with its clustered two-sided 95 % interval; none where nothing varied or in one cluster."""
    mean, error, n = _clustered(values.to_numpy(dtype=float), cluster)
    clusters = cluster.nunique()
    if clusters < 2 or not error:
        return Metric(value=100 * mean, unit=unit, n=n)
    half = float(stats.t.ppf(0.975, clusters - 1)) * error
    return Metric(value=100 * mean, unit=unit, n=n, ci_low=100 * (mean - half), ci_high=100 * (mean + half))


def _alarm(compared: dict[str, Metric]) -> tuple[str, ...]:
    p = compared["lost_p"]
    if p.value is None or p.value > ALARM or not p.n:
        return ()
    return (
        f"Alarm: of {p.n} items on which the arms differ, more were lost than chance explains (mid-p McNemar "
        f"{p.value:.2g}); a regression is likely, whatever the margin allows.",
    )


def _share(flags: pd.Series[Any]) -> Metric:
    return Metric(value=float(flags.mean()), unit="share", n=len(flags))


def _thinking(grades: pd.DataFrame, other: pd.DataFrame) -> dict[str, Metric]:
    """How much was thought, in characters, and against the other arm on the same questions."""
    thought = grades["thinking"].str.len()
    if not thought.any() and not other["thinking"].str.len().any():
        return {}
    theirs = other["thinking"].str.len()
    metrics = {
        "thinking_share": _share(thought > 0),
        "thinking_chars_p50": Metric(value=float(thought.median()), unit="characters", n=len(thought)),
    }
    if theirs.sum():
        ratio = float(thought.mean() / theirs.mean())
        metrics["thinking_over_other_arm"] = Metric(value=ratio, unit="x", n=len(thought))
    return metrics


def _length(grades: pd.DataFrame, reference: pd.DataFrame) -> dict[str, Metric]:
    """Characters written and thought, against the reference's on the same items."""
    theirs = reference[reference["fate"] != "error"].groupby("item")[["text", "thinking"]].first()
    both = grades.merge(theirs, left_on="item", right_index=True, suffixes=("", "_r"))
    metrics = {}
    for name, column in (("length_over_reference", "text"), ("thinking_over_reference", "thinking")):
        if total := both[f"{column}_r"].str.len().sum():
            metrics[name] = Metric(value=float(both[column].str.len().sum() / total), unit="x", n=len(both))
    return metrics


def _memorised(grades: pd.DataFrame, other: pd.DataFrame) -> Finding:
    """Is the candidate better, against the baseline, on public items than on ones drawn for this run?"""
    both = grades.merge(other, on=["item", "repeat"], suffixes=("", "_n"))
    gain = (both["score"] - both["score_n"]).to_numpy(dtype=float)
    parts = [
        _clustered(gain[s], both["cluster"][s]) for s in ((both["split"] == "public"), (both["split"] == "sealed"))
    ]
    if any(n < 20 for _, _, n in parts):
        return _not_compared("it needs 20 items of the public and of the sealed split in both arms")
    (public, sealed), errors = (100 * parts[0][0], 100 * parts[1][0]), 100 * np.hypot(parts[0][1], parts[1][1])
    gap = public - sealed
    p = float(stats.norm.sf(gap / errors)) if errors > 0 else (0.0 if gap > 0 else 1.0)
    sentence = (
        f"Against the baseline the candidate scores {public:+.1f} pt on public items and {sealed:+.1f} pt on items "
        f"drawn for this run: a gap of {gap:+.1f} pt (p={p:.2g}; {MEMORY_GAP_PT:g} pt would be memorised text)."
    )
    broken = p < ALPHA and gap >= MEMORY_GAP_PT
    return Finding(
        name="memorised-items", status="broken" if broken else "kept", sentence=sentence, observed=gap,
        limit=MEMORY_GAP_PT, count=0, n=len(gain), detectable_rate=None, examples=(),
    )  # fmt: skip


def _not_compared(why: str = "the baseline is what the candidate is compared with") -> Finding:
    return Finding(
        name="memorised-items", status="unscored", sentence=f"Not judged: {why}.", count=0, n=0, detectable_rate=None,
        examples=(),
    )  # fmt: skip


def _clustered(gain: Values, cluster: pd.Series[Any]) -> tuple[float, float, int]:
    """Mean, clustered standard error, items."""
    if len(gain) < 2:
        return float(gain.sum()), 0.0, len(gain)
    sums = pd.Series(gain - gain.mean()).groupby(cluster.to_numpy()).sum().to_numpy(dtype=float)
    g = len(sums)
    return float(gain.mean()), float(np.sqrt((sums**2).sum() * g / max(g - 1, 1)) / len(gain)), len(gain)


def _notes(grades: pd.DataFrame) -> tuple[str, ...]:
    """What a reader must know: tasks at floor or ceiling, and answers that count as wrong unseen."""
    means = {str(task): float(rows["score"].mean()) for task, rows in grades.groupby("task")}
    ends = [
        f"{task} at {'floor' if m < FLOOR else 'ceiling'}" for task, m in means.items() if not FLOOR <= m <= CEILING
    ]
    notes = [f"Tasks that cannot tell engines apart: {', '.join(ends)}."] if ends else []
    wrong = grades["fate"][grades["fate"].isin(WRONG)].value_counts()
    if len(wrong):
        told = ", ".join(f"{count} {fate}" for fate, count in wrong.items())
        notes.append(f"Counted as wrong without grading: {told}, of {len(grades)} answers.")
    if grades["stop_kept"].any():
        notes.append(f"{int(grades['stop_kept'].sum())} answers run on past a stop string; they were cut there.")
    return tuple(notes)


def paired(baseline: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    """One row an item of both arms, repeats averaged: item, task, cluster, baseline, candidate."""
    means = [
        arm.groupby("item").agg(task=("task", "first"), cluster=("cluster", "first"), score=("score", "mean"))
        for arm in (baseline, candidate)
    ]
    table = means[0].join(means[1]["score"], how="outer", rsuffix="_e").reset_index()
    return table.rename(columns={"score": "baseline", "score_e": "candidate"})


def read_grades(paths: Sequence[Path]) -> list[pd.DataFrame]:
    """tasks.parquet of each arm as a data frame."""
    return [pq.read_table(path).to_pandas(integer_object_nulls=True) for path in paths]
