"""The example plans are plans, and the pair that `make acceptance` runs differs only in its endpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.plan import make_plan

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_a_plan(path: Path) -> None:
    make_plan(yaml.safe_load(path.read_text()), source=path.name, folder=path.parent)


def test_the_acceptance_plans_differ_only_in_their_endpoints() -> None:
    one, other = (
        yaml.safe_load((EXAMPLES / name).read_text()) for name in ("vllm-vs-llamacpp.yaml", "llamacpp-vs-vllm.yaml")
    )
    ours, theirs = one.pop("endpoints"), other.pop("endpoints")
    assert one == other
    assert ours["candidate"] == theirs["baseline"]
    assert ours["baseline"] == theirs["candidate"]
