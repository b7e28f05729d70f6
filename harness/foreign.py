"""Does the baseline belong to the reference at all? Pure.

`token_margin` is a ratio: when neither arm is the reference's model, both are equally far from it and the ratio reads
1.00x. So the baseline's own divergence has an absolute bound.
"""

from __future__ import annotations

from math import isfinite

from harness.divergence import Divergence, Documents
from harness.verdict import Check, Family, Status

# Nats a token (docs/gate.md, "Is the baseline this model?"): over twice the hardest real quantisation measured on the
# most fragile model, a third of an engine that does not know the model at all.
FOREIGN_NATS = 1.0


def baseline_checks(token_margin: Divergence | None, kld: Divergence | None) -> tuple[Check, ...]:
    """`baseline.model`, INVALID: the baseline answers like another model than the reference. Nothing when it does not.

    What rests on a baseline whose check begins with `baseline.` is not judged (harness.completeness).
    """
    arms = (("margin", token_margin), ("KL divergence", kld))
    measured = [(what, one.baseline, _nats_a_token(one.baseline)) for what, one in arms if one is not None]
    return tuple(_foreign(what, documents, nats) for what, documents, nats in measured if nats > FOREIGN_NATS)[:1]


def _nats_a_token(documents: Documents) -> float:
    """Mean over answers asked at temperature 0 (a sampled token is no sign of another model); 0 without one."""
    chosen = slice(None) if documents.greedy is None else documents.greedy
    tokens = float(documents.tokens[chosen].sum())
    return float(documents.nats[chosen].sum()) / tokens if tokens > 0 else 0.0


def _foreign(what: str, documents: Documents, nats: float) -> Check:
    return Check(
        check="baseline.model",
        family=Family.VALIDITY,
        status=Status.INVALID,
        criterion=f"the baseline is within {FOREIGN_NATS:g} nats a token of the reference",
        metric="baseline.model",
        unit="nats",
        observed=nats if isfinite(nats) else None,
        required=FOREIGN_NATS,
        n=len(documents.tokens),
        reason=f"The baseline is not this model: its mean {what} under the reference is {nats:.3g} nats a token, and "
        f"no quantisation of it would read over {FOREIGN_NATS:g}.",
        hint="Does the baseline serve the reference's model, with its chat template?",
        evidence=("oracles/baseline/tokens.json",),
    )
