"""The example plans are plans, and the pair that `make acceptance` runs differs only in its endpoints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from harness.cells import make_cells
from harness.criteria import load_policy
from harness.judge import check_criteria
from harness.plan import make_plan

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    "path", sorted([*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("gpu/*.yaml")]), ids=lambda path: path.name
)
def test_every_example_is_a_plan(path: Path) -> None:
    make_plan(yaml.safe_load(path.read_text()), source=path.name, folder=path.parent)


def test_the_readmes_plan_is_a_plan(tmp_path: Path) -> None:
    """Its folder is the reader's own; its profiles, policy, criteria and tasks are ours."""
    readme = (EXAMPLES.parent / "README.md").read_text()
    block = re.search(r"## A plan\n\n((?:    .*\n)+)", readme)
    assert block
    content = yaml.safe_load(block[1])
    (tmp_path / content["reference"]["path"]).mkdir(parents=True)
    plan = make_plan(content, source="README.md", folder=tmp_path)
    check_criteria(plan, make_cells(plan))


def test_the_acceptance_plans_differ_only_in_their_endpoints() -> None:
    one, other = (
        yaml.safe_load((EXAMPLES / name).read_text()) for name in ("vllm-vs-llamacpp.yaml", "llamacpp-vs-vllm.yaml")
    )
    ours, theirs = one.pop("endpoints"), other.pop("endpoints")
    assert one == other
    assert ours["candidate"] == theirs["baseline"]
    assert ours["baseline"] == theirs["candidate"]


@pytest.mark.parametrize(
    ("policy", "left_out"), [("beat-by-20-tasks-3pt", set()), ("decode-by-20-tasks-3pt", {"ttft.p50", "ttft.p95"})]
)
def test_the_gpu_plans_policies_are_beat_by_20_but_for_what_they_say(policy: str, left_out: set[str]) -> None:
    own = {one.name: one for one in load_policy(EXAMPLES / "gpu" / "policy" / f"{policy}.yaml")}
    builtin = {one.name: one for one in load_policy("beat-by-20")}
    assert builtin.keys() - own.keys() == left_out
    assert [name for name in own if own[name].value != builtin[name].value] == ["tasks"]
