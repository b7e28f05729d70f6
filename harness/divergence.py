"""What is known of an arm's distance from the BF16 reference, answer by answer. Pure arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from harness.statistics import Array


@dataclass(frozen=True)
class Documents:
    """One arm's scored answers, one entry a request; all arrays have the same length.

    `nats` is the sum over the answer's `tokens` of the margin (or the KL divergence) under the reference. `item` names
    the prompt: answers to one prompt are resampled together. `greedy`: asked at temperature 0; None means all.
    """

    pair: npt.NDArray[np.int64]
    line: npt.NDArray[np.int64]
    item: npt.NDArray[np.str_]
    stratum: npt.NDArray[np.str_]
    tokens: Array
    nats: Array
    greedy: npt.NDArray[np.bool_] | None = None

    def keys(self) -> npt.NDArray[np.int64]:
        """One number for each (pair, line): equal in both arms for the same request."""
        return np.asarray(self.pair.astype(np.int64) * 2**32 + self.line)

    def at_temperature_0(self) -> Documents:
        """The greedy answers alone."""
        if self.greedy is None:
            return self
        columns = {f.name: getattr(self, f.name)[self.greedy] for f in fields(self)}
        return Documents(**columns)


@dataclass(frozen=True)
class Divergence:
    """The three arms of one divergence measure. `floor` is a sub-sample, or None when it was not measured."""

    candidate: Documents
    baseline: Documents
    floor: Documents | None

    def at_temperature_0(self) -> Divergence:
        """Greedy answers alone where both arms have some: a sampled token's margin tells of the dice.

        Sampled answers are held against the reference's entropy by the token oracle. A run that samples everywhere is
        compared as it is: the dice are thrown in both arms.
        """
        candidate, baseline = self.candidate.at_temperature_0(), self.baseline.at_temperature_0()
        if not len(candidate.tokens) or not len(baseline.tokens):
            return self
        return replace(self, candidate=candidate, baseline=baseline)
