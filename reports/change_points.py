"""Where a series of measurements shifts: an alarm for a person, never a gate.

E-divisive (Matteson and James, arXiv 1306.4933): split where the energy distance between the two sides is largest, keep
the split when a permutation test finds it at 5 %, go on inside both sides.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MIN_SEGMENT = 4
PERMUTATIONS = 199
LEVEL = 0.05

Values = npt.NDArray[np.float64]


def change_points(values: Values) -> list[int]:
    """Indices at which a new level begins; needs at least `MIN_SEGMENT` values on each side of one."""
    found: list[int] = []
    rng = np.random.default_rng(0)
    open_segments = [(0, len(values))]
    while open_segments:
        start, stop = open_segments.pop()
        part = np.asarray(values[start:stop], dtype=np.float64)
        if len(part) < 2 * MIN_SEGMENT:
            continue
        at, gain = _best_split(part)
        chance = sum(_best_split(rng.permutation(part))[1] >= gain for _ in range(PERMUTATIONS))
        if (chance + 1) / (PERMUTATIONS + 1) <= LEVEL:
            found.append(start + at)
            open_segments += [(start, start + at), (start + at, stop)]
    return sorted(found)


def _best_split(values: Values) -> tuple[int, float]:
    """(place, energy statistic) of the split that separates best."""
    apart = np.abs(values[:, None] - values[None, :])
    best, gain = 0, -np.inf
    for at in range(MIN_SEGMENT, len(values) - MIN_SEGMENT + 1):
        n, m = at, len(values) - at
        between = apart[:at, at:].mean()
        within = apart[:at, :at].sum() / (n * (n - 1)) + apart[at:, at:].sum() / (m * (m - 1))
        statistic = n * m / (n + m) * (2 * between - within)
        if statistic > gain:
            best, gain = at, float(statistic)
    return best, gain
