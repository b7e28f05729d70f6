"""How numbers and states are written, the same in HTML, Markdown, CSV and charts."""

from __future__ import annotations

from reports.verdict_data import Check

MISSING = "–"
GLYPHS = {"PASS": "✓", "FAIL": "✕", "INCONCLUSIVE": "≈", "INVALID": "!", "SWEEP": "∿", "UNFINISHED": "…"}
UNJUDGED = {
    "SWEEP": "Sweep: measured, not judged",
    "UNFINISHED": "Unfinished: no verdict yet",
}


_WRITTEN = {"aiperf": "AIPerf", "gpu": "GPU", "tpot": "TPOT", "ttft": "TTFT", "utf": "UTF"}


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, thousands grouped: 0.0031, 12.4, 1,360."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    written = f"{value:.{digits - 1}e}"  # rounded first, so that 0.9996 is 1.00 and not 1.000
    if not 1e-4 <= abs(value) < 1e7:
        return written
    places = max(0, digits - 1 - int(written.partition("e")[2]))
    return f"{value:,.{places}f}"


def ratio(value: float | None) -> str:
    """1.17×; more than a hundred without decimals, and never 0.00× for what is not zero."""
    return MISSING if value is None else f"{times(value)}×"


def times(value: float) -> str:
    """A ratio without its sign."""
    return f"{value:,.0f}" if abs(value) >= 100 else number(value, 2) if 0 < abs(value) < 0.095 else f"{value:.2f}"


def with_unit(value: float | None, unit: str) -> str:
    """A number and its unit."""
    if value is None:
        return MISSING
    if unit == "x":
        return ratio(value)
    if unit == "pt":
        return f"{value:+.2f} pt"
    if unit == "share":
        return percent(value)
    return f"{number(value)} {unit}".strip()


def percent(value: float | None, digits: int = 1) -> str:
    """A share as a percentage."""
    return MISSING if value is None else f"{100 * value:.{digits}f}\u00a0%"


def interval(check: Check) -> str:
    """1.11 to 1.23, in the check's unit; half-open when one bound is missing."""
    low, high = check.ci_low, check.ci_high
    plain = {"x": times, "pt": "{:+.2f}".format}.get(check.unit, number)
    if low is None:
        return f"≤ {plain(high)}" if high is not None else ""
    if high is None:
        return f"≥ {plain(low)}"
    return f"{plain(low)} to {plain(high)}"


def sign(check: Check) -> str:
    """≥ or ≤, as the criterion has it; empty when it is not of that form."""
    return "≥" if ">=" in check.criterion else "≤" if "<=" in check.criterion else ""


def wants_more(check: Check) -> bool:
    """Whether larger is better."""
    return sign(check) != "≤"


def bar(check: Check) -> str:
    """≥ 1.20×."""
    return (
        f"{sign(check)}\u00a0{with_unit(check.required, check.unit)}".strip() if check.required is not None else MISSING
    )


def duration(seconds: float | None) -> str:
    """4 h 05 min, 12 min 08 s, 38 s."""
    if seconds is None:
        return MISSING
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}\u00a0h\u00a0{whole % 3600 // 60:02d}\u00a0min"
    return f"{whole // 60}\u00a0min\u00a0{whole % 60:02d}\u00a0s" if whole >= 60 else f"{whole}\u00a0s"


def count(value: float | None, noun: str) -> str:
    """1 pair, 6 pairs, 1,360 tokens."""
    if value is None:
        return f"{MISSING} {noun}s"
    return f"{value:,.0f} {noun}{'' if value == 1 else 's'}"


def sentence_case(name: str) -> str:
    """`same-cache` as a person writes it: Same cache; `credit_lag_p99_ms`: Credit lag p99, ms."""
    words = [_WRITTEN.get(word, word) for word in name.replace("-", " ").replace("_", " ").split(" ")]
    text = " ".join(words)
    for ending, unit in ((" ms", "ms"), (" mib", "MiB"), (" j", "J")):
        text = f"{text.removesuffix(ending)}, {unit}" if text.endswith(ending) else text
    return text[:1].upper() + text[1:]
