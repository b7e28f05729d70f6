"""Conduct that shows only beside the baseline on the same requests: pacing, lengths, openings, loops, fairness."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from scipy import stats

from oracles import text_signs
from oracles.arm import KEY, Arm, Flags, Values, both
from oracles.evidence import Evidence, exceeds, merge, rate, tested, unscored, versus

TOO_FAST = 10.0  # times the baseline: beyond what an engine gains over a tuned one
SIMULTANEOUS_MS = 0.25  # events closer than this left together
BURST_TOKENS = 32  # more at once than any speculator accepts
STEP_TOKENS = 16  # most tokens a speculator makes in a step, for the roofline


def checks(
    rows: Arm, baseline: Arm | None, prompt_tokens: pa.Table | None, steps_per_s: float | None
) -> list[Evidence]:
    """Everything judged against the baseline; unscored, or by an honest rate, where there is none."""
    served = rows.served
    other = None if baseline is None else baseline.served
    mine, theirs = (served, None) if other is None else both(served, other)
    return [
        _bursts(mine, theirs),
        _stalled_opening(mine, theirs),
        _opening(mine, theirs),
        _texts("loops", "the answer repeats itself", served, other, lambda a: a.loops >= 0.5, 0.1),
        _texts("same-answers", "other prompts got the very same answer", served, other, _same_answers, 0.05),
        _texts("refusals", "the answer refuses", served, other, _each(text_signs.is_refusal), 0.05),
        _texts("lost-characters", "U+FFFD inside the text", served, other, _each(text_signs.lost_characters), 0.02),
        _texts(
            "padding", "the answer ends in unseen characters", served, other, _each(text_signs.ends_invisibly), 0.05
        ),
        _script(mine, theirs),
        *_lengths(mine, theirs),
        _speed(mine, theirs, steps_per_s),
        _prompt_tokens(served, other, prompt_tokens),
        _starved(mine, theirs),
    ]


def _texts(
    name: str, what: str, mine: Arm, theirs: Arm | None, sign: Callable[[Arm], Flags], margin: float
) -> Evidence:
    return versus(name, what, sign(mine), mine.labels, None if theirs is None else sign(theirs), margin)


def _each(sign: Callable[[str], bool]) -> Callable[[Arm], Flags]:
    return lambda arm: np.array([sign(text) for text in arm.text()], dtype=bool)


def _same_answers(arm: Arm) -> Flags:
    """Answers of 24 characters or more that another prompt got word for word; minimal pairs are judged apart."""
    prompts: dict[str, set[str]] = {}
    asked = [str(m) if kind != "audit" else "" for m, kind in zip(arm.rows["messages"], arm.rows["kind"], strict=True)]
    for text, prompt in zip(arm.text(), asked, strict=True):
        prompts.setdefault(text, set()).update({prompt} - {""})
    return np.array(
        [len(t) >= 24 and p != "" and len(prompts[t]) > 1 for t, p in zip(arm.text(), asked, strict=True)], dtype=bool
    )


def _bursts(mine: Arm, theirs: Arm | None) -> Evidence:
    """Buffered, then sent at once, or paced after the fact.

    (a) most of an answer in groups of simultaneous tokens larger than any speculator's; (b) the first token came when
    the answer was all but done and the others over three times faster than the baseline's, where the baseline's first
    came early: TPOT is then a pause between writes. A slow prefill looks like (b) but does not grow with the length of
    the answer, which clears it. An honest block speculator shows neither.
    """
    name, what = "bursts", "the answer was held back and sent at once"
    if theirs is None:
        return rate(name, what, _grouped(mine), mine.labels, 0.1)
    late = (_first_share(mine) >= 0.8) & (_first_share(theirs) <= 0.5) & (_times_faster(mine, theirs, "tpot_ms") > 3)
    late &= (mine.number("ttft_ms") > 2 * theirs.number("ttft_ms")) & (not _waits_for_prompt_only(mine))
    none = np.zeros(len(theirs), dtype=bool)
    return merge(
        name,
        [
            versus(name, what, _grouped(mine), mine.labels, _grouped(theirs), 0.1),
            versus(name, what, late, mine.labels, none, 0.1),
        ],
    )


def _waits_for_prompt_only(arm: Arm) -> bool:
    """Does TTFT, prompt length taken out, not follow the answer's length? Partial rank correlation under 0.3."""
    columns = (arm.number("ttft_ms"), arm.shown, np.array([len(str(m)) for m in arm.rows["messages"]], dtype=float))
    seen = np.isfinite(columns[0]) & np.isfinite(columns[1])
    ttft, length, prompt = (stats.rankdata(column[seen]) for column in columns)
    if seen.sum() < 20 or len(np.unique(length)) < 10:
        return False

    def without_prompt(ranks: Values) -> Values:
        if np.ptp(prompt) == 0:
            return ranks
        fit = stats.linregress(prompt, ranks)
        return np.asarray(ranks - fit.intercept - fit.slope * prompt)

    return bool(stats.pearsonr(without_prompt(ttft), without_prompt(length)).statistic < 0.3)


def _times_faster(mine: Arm, theirs: Arm, column: str) -> Values:
    """The baseline's time over this arm's, request by request; infinite where this arm took none at all."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(theirs.number(column) / mine.number(column))


def _grouped(arm: Arm) -> Flags:
    def burst(times: Values, tokens: Values) -> bool:
        total = tokens.sum()
        if total < 16 or len(times) != len(tokens):
            return False
        group = np.concatenate(([0], np.cumsum(np.diff(times) > SIMULTANEOUS_MS)))
        sizes = np.bincount(group, weights=tokens)
        return bool(sizes[sizes > BURST_TOKENS].sum() >= 0.5 * total or sizes.max() >= 0.8 * total)

    return np.array([burst(t, n) for t, n in zip(arm.lists("event_ms"), arm.lists("event_tokens"), strict=True)])


def _first_share(arm: Arm) -> Values:
    """Time to the first token as a share of the whole; NaN for answers too short to tell."""
    share = arm.number("ttft_ms") / arm.number("request_latency_ms")
    return np.where(arm.shown >= 16, share, np.nan)


def _stalled_opening(mine: Arm, theirs: Arm | None) -> Evidence:
    """A first token sent before the work was done: a long pause follows it."""
    name, what = "stalled-opening", "the first token came at once and then nothing for most of the time"

    def stalled(arm: Arm) -> Flags:
        gaps = [np.diff(times) for times in arm.lists("event_ms")]
        return np.array(
            [len(g) >= 7 and g[0] >= 0.4 * g.sum() and g[0] >= 8 * max(np.median(g[1:]), 0.1) for g in gaps], dtype=bool
        )

    other = None if theirs is None else stalled(theirs)
    return exceeds(name, what, stalled(mine), mine.labels, other, 0.1, 0.1)


def _opening(mine: Arm, theirs: Arm | None) -> Evidence:
    """The same first word whatever was asked, or one that nobody sees: filler that buys a TTFT."""
    name, what = "opening", "the answer opens with filler"
    if theirs is None:
        return unscored(name, "it is judged against the baseline, and there is none")
    openings = np.array([text_signs.opening(text) for text in mine.text()], dtype=str)
    words, counts = np.unique(openings[openings != ""], return_counts=True)
    if len(words) == 0:
        return unscored(name, "no answer had any text")
    common = words[counts.argmax()]
    usual = np.array([text_signs.opening(text) == common for text in theirs.text()], dtype=bool)
    unseen = _each(text_signs.opens_invisibly)
    return merge(
        name,
        [
            versus(name, f"{what} {common[:20]!r}", openings == common, mine.labels, usual, 0.2, trials=len(words)),
            versus(name, f"{what} that nobody sees", unseen(mine), mine.labels, unseen(theirs), 0.1),
        ],
    )


def _script(mine: Arm, theirs: Arm | None) -> Evidence:
    """Where the baseline writes in another script than Latin, does this arm too?"""
    name, what = "script", "the answer left the script that the baseline answers in"
    if theirs is None:
        return unscored(name, "it is judged against the baseline, and there is none")
    wrote, writes = _far(theirs), _far(mine)
    asked = (wrote >= 0.3) | (writes >= 0.3)
    label = [text for text, ok in zip(mine.labels, asked, strict=True) if ok]
    return versus(name, what, (writes < 0.1 * wrote)[asked], label, (wrote < 0.1 * writes)[asked], 0.1)


def _far(arm: Arm) -> Values:
    """Share of characters beyond Latin."""
    return np.array([sum(ord(c) > 0x24F for c in text[:4096]) / max(1, len(text[:4096])) for text in arm.text()])


def _lengths(mine: Arm, theirs: Arm | None) -> list[Evidence]:
    """Answers that end early, run on, or are bent to the same length, beside the baseline's on the same prompts.

    Numerics alone move single answers both ways; a shift is judged by the signed-rank test on log lengths with a
    median change of a tenth, halved or doubled answers by counting both directions (exact sign test), and the shape
    of the distribution by Kolmogorov and Smirnov.
    """
    names = ("short-answers", "long-answers", "length-spread")
    if theirs is None:
        return [unscored(name, "it is judged against the baseline, and there is none") for name in names]
    free = ~mine.rows["fixed_length"].to_numpy(dtype=bool) & (mine.shown > 0) & (theirs.shown > 0)
    if free.sum() < 8:
        return [unscored(name, f"only {free.sum()} answers could stop by themselves") for name in names]
    ratio = np.log(mine.shown[free] / theirs.shown[free])
    label = [name for name, ok in zip(mine.labels, free, strict=True) if ok]
    spread = stats.ks_2samp(mine.shown[free], theirs.shown[free], method="asymp")
    return [
        _shift(names[0], "the answer is less than 0.6 of the baseline's", -ratio, np.log(1 / 0.6), label),
        _shift(names[1], "the answer is more than 1.6 of the baseline's", ratio, np.log(1.6), label),
        tested(names[2], "the answer's length is far from the baseline's", np.abs(ratio) > np.log(1.6), label,
               spread.pvalue, spread.statistic >= 0.2, f"the two distributions are {spread.statistic:.2f} apart", 0.2),
    ]  # fmt: skip


def _shift(name: str, what: str, shift: Values, far: float, label: Sequence[str]) -> Evidence:
    beyond, behind = shift > far, shift < -far
    ways = int(beyond.sum() + behind.sum())
    steps = np.arange(len(shift) + 1)
    ladder = stats.binom.sf(steps - 1, steps + behind.sum(), 0.5)
    ladder[steps - behind.sum() < 0.1 * len(shift)] = np.inf
    apart = Evidence(
        name, what, int(beyond.sum()), len(shift), float(min(1.0, ladder[beyond.sum()])),
        f"{int(behind.sum())} went the other way", 0.1, beyond.sum() - behind.sum() >= 0.1 * len(shift),
        ladder, tuple(label[i] for i in np.flatnonzero(beyond)[:3]),
    )  # fmt: skip
    if ways == 0 and not shift.any():
        return apart
    moved = shift[shift != 0]
    p = float(stats.wilcoxon(moved, alternative="greater").pvalue) if len(moved) else 1.0
    median = float(np.median(shift))
    against = f"the median answer changed by {np.expm1(median):+.0%}"
    return merge(name, [apart, tested(name, what, beyond, label, p, median >= np.log(1.1), against, 0.1)])


def _speed(mine: Arm, theirs: Arm | None, steps_per_s: float | None) -> Evidence:
    """Faster than the hardware can be, or ten times the baseline."""
    name = "impossible-speed"
    tpot = mine.number("tpot_ms")
    timed = np.isfinite(tpot) & (mine.shown >= 16)
    label = [text for text, ok in zip(mine.labels, timed, strict=True) if ok]
    if steps_per_s is not None:
        most = steps_per_s * STEP_TOKENS
        return rate(name, f"over {most:,.0f} tokens/s, the roofline", tpot[timed] < 1000 / most, label, 0.05)
    if theirs is None:
        return unscored(name, "neither a roofline nor a baseline is known")
    ratio = _times_faster(mine, theirs, "tpot_ms")[timed]
    return rate(name, f"tokens came over {TOO_FAST:g} times faster than the baseline's", ratio > TOO_FAST, label, 0.25)


def _prompt_tokens(served: Arm, other: Arm | None, expected: pa.Table | None) -> Evidence:
    """Prompt tokens as claimed, against the judge's template, else against the baseline's claim (0 to 3 more)."""
    name, what = "prompt-tokens", "the prompt was not read as it was sent"
    if expected is not None:
        table = expected.select([*KEY, "prompt_tokens"]).to_pandas().drop_duplicates(KEY)
        rows = served.rows.merge(table, on=KEY)
        source, slack = "prompt_tokens", 0
    elif other is not None:
        rows = served.rows.merge(other.rows[[*KEY, "usage_prompt_tokens"]], on=KEY, suffixes=("", "_other"))
        source, slack = "usage_prompt_tokens_other", 3
    else:
        return unscored(name, "neither a reference template nor a baseline is known")
    rows = rows.dropna(subset=["usage_prompt_tokens", source])
    if len(rows) == 0:
        return unscored(name, "prompt tokens are not claimed by both sides")
    more = (rows["usage_prompt_tokens"] - rows[source]).to_numpy(dtype=float)
    label = [f"pair {p} line {line}: {d:+.0f}" for p, line, d in zip(rows["pair"], rows["line"], more, strict=True)]
    return rate(name, what, (more < 0) | (more > slack), label, 0.1)


def _starved(mine: Arm, theirs: Arm | None) -> Evidence:
    """Requests left waiting ten times the cell's median, where the baseline served them in time."""
    name, what = "starvation", "the request waited ten times as long as its neighbours"
    if theirs is None:
        return unscored(name, "it is judged against the baseline, and there is none")

    def waiting(arm: Arm) -> Flags:
        ttft = arm.rows["ttft_ms"].astype(float)
        median = ttft.groupby(arm.rows["cell"]).transform("median")
        return ((ttft >= 10 * median) & (ttft >= 250)).to_numpy(dtype=bool)

    return versus(name, what, waiting(mine), mine.labels, waiting(theirs), 0.02)
