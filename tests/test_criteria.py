from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.criteria import CellScope, builtin_policies, load_policy, not_gateable, parse_criterion, resolve
from harness.errors import UsageError

STEADY = CellScope("chat-steady/c8", "chat-steady", frozenset({"ttft.p50", "ttft.p95", "tpot.p50"}), 100)
BURST = CellScope("chat-burst/r2.5", "chat-burst", frozenset({"ttft.p50", "goodput"}), 24)


@pytest.mark.parametrize(
    ("text", "name", "op", "value", "unit", "profile", "load"),
    [
        ("ttft.p50 >= 1.20x", "ttft.p50", ">=", 1.2, "x", "*", None),
        ("ttft.p95<=200ms@chat-steady", "ttft.p95", "<=", 200, "ms", "chat-steady", None),
        ("ttft.p95 <= 2 s @ c8", "ttft.p95", "<=", 2000, "ms", "*", "c8"),
        ("tpot.p50 >= 1.3x @ chat-*/c8", "tpot.p50", ">=", 1.3, "x", "chat-*", "c8"),
        ("goodput >= 3 req/s @ chat-burst/r2.5", "goodput", ">=", 3, "req/s", "chat-burst", "r2.5"),
        ("output_throughput >= 1e3 tok/s", "output_throughput", ">=", 1000, "tokens/s", "*", None),
        ("peak_memory <= 12GiB", "peak_memory", "<=", 12288, "MiB", "*", None),
        ("token_margin <= 1.05x", "token_margin", "<=", 1.05, "x", "*", None),
        ("tasks >= -1.0pt", "tasks", ">=", -1, "pt", "*", None),
        ("tasks >= 0pt", "tasks", ">=", 0, "pt", "*", None),
    ],
)
def test_a_criterion_reads_as_a_person_reads_it(
    text: str, name: str, op: str, value: float, unit: str, profile: str, load: str | None
) -> None:
    c = parse_criterion(text)
    assert (c.name, c.op, c.value, c.unit, c.profile, c.load) == (name, op, pytest.approx(value), unit, profile, load)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ttfs.p50 >= 1.2x", "unknown metric 'ttfs'. Did you mean ttft"),
        ("itl.p50 >= 1.2x", "Did you mean tpot?"),
        ("latency.p50 >= 1.2x", "Did you mean request_latency?"),
        ("ttft >= 1.2x", "needs a statistic, e.g. ttft.p50"),
        ("ttft.p59 >= 1.2x", "unknown statistic 'p59'. Did you mean"),
        ("goodput.p50 >= 1.2x", "takes no statistic"),
        ("ttft.p50 >= 1.2", "has no unit; ttft takes x or ms"),
        ("ttft.p50 >= 20%", "is not given in '%'. Allowed: x, ms"),
        ("ttft.p50 >= 1.2mss", "Did you mean ms"),
        ("ttft.p50 > 1.2x", "unknown operator '>'; write >="),
        ("ttft.p50 <= 0.8x", "the same bar is `ttft.p50 >= 1.25x`"),
        ("ttft.p50 >= 200ms", "judged with <=, not >="),
        ("output_throughput <= 1.2x", "judged with >=, not <="),
        ("tasks >= -1pt @ chat", "takes no scope"),
        ("ttft.p50 >= 1.2x @ chat/8", "'8' is no load; write c8"),
        ("ttft.p50 >= 1.2x @ cha t", "is no profile pattern"),
        ("ttft.p50 >= 0x", "must be over 0"),
        ("tasks >= -300pt", "must be at least -100"),
        ("ttft.p50 >= x", "is not a number"),
        ("", "is not of the form"),
        ("rm -rf", "is not of the form"),
        ("t" * 400, "is not of the form"),
    ],
)
def test_a_bad_criterion_gets_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_criterion(text)
    assert sentence in str(raised.value)
    assert len(str(raised.value)) < 500


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        criterion = parse_criterion(text)
    except UsageError:
        return
    assert criterion.value == criterion.value


@pytest.mark.parametrize("name", sorted(builtin_policies()))
def test_built_in_policies_load_and_say_where_they_come_from(name: str) -> None:
    criteria = load_policy(name)
    assert {criterion.policy for criterion in criteria} == {name}
    assert {"token_margin", "tasks"} <= {criterion.metric for criterion in criteria}


def test_a_policy_file_is_read_strictly(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\ncriteria: ['ttft.p50 >= 1.1x']\n")
    assert load_policy(file)[0].value == 1.1
    for text, complaint in (
        ("name: mine\ncriterias: []\n", "criteria"),
        ("- a", "keys name"),
        ("a: [", "readable YAML"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=complaint):
            load_policy(file)
    with pytest.raises(UsageError, match="Did you mean beat-by-20"):
        load_policy("beat-by-2")


def test_a_policy_applies_where_it_can_and_says_where_it_cannot() -> None:
    policy = load_policy("beat-by-20")
    ids = {
        criterion.check_id(cell) for criterion, cell in resolve(policy, [STEADY, BURST], frozenset({"token_margin"}))
    }
    assert ids == {
        "ttft.p50@chat-steady/c8", "ttft.p95@chat-steady/c8", "tpot.p50@chat-steady/c8",
        "ttft.p50@chat-burst/r2.5", "goodput@chat-burst/r2.5", "token_margin",
    }  # fmt: skip
    notes = "\n".join(not_gateable(policy, [STEADY, BURST], frozenset({"token_margin"})))
    assert "tasks >= -1.0pt is not judged anywhere: this plan measures no tasks" in notes
    assert "tpot.p50 >= 1.20x is not judged in 1 of 2 cells" in notes


def test_percentiles_need_requests() -> None:
    few = CellScope("chat/c1", "chat", frozenset({"ttft.p50", "ttft.p95", "ttft.p99"}), 58)
    assert [c.name for c, _ in resolve(load_policy("beat-by-20"), [few], frozenset())] == ["ttft.p50"]
    with pytest.raises(UsageError, match="needs at least 59 requests a visit and chat/c1 sends 58"):
        resolve([parse_criterion("ttft.p95 >= 1.2x")], [few])
    with pytest.raises(UsageError, match="at least 1000 requests"):
        resolve([parse_criterion("ttft.p99 >= 1.2x")], [few])


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (
            ["tpot.p50 >= 1.2x @ chat-burst"],
            "does not call tpot.p50 gateable in chat-burst/r2.5 (gateable there: goodput",
        ),
        (["ttft.p50 >= 1.2x @ chat-stead"], "matches no cell of the plan. Did you mean chat-steady"),
        (["ttft.p50 >= 1.2x @ c9"], "loads: c8, r2.5"),
        (
            ["ttft.p50 >= 1.2x", "ttft.p50 >= 1.3x @ chat-*"],
            "contradict each other: two bars for ttft.p50 in chat-steady/c8",
        ),
        (["throughput_per_gpu >= 1.2x"], "this plan measures no throughput_per_gpu"),
    ],
)
def test_a_users_criterion_that_cannot_be_judged_is_refused(texts: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        resolve([parse_criterion(text) for text in texts], [STEADY, BURST], frozenset({"token_margin"}))
    assert sentence in str(raised.value)


def test_nothing_gateable_is_refused() -> None:
    idle = CellScope("idle/c1", "idle", frozenset(), 100)
    with pytest.raises(UsageError, match="No cell of this plan has anything to gate"):
        resolve(load_policy("beat-by-20"), [idle])
    with pytest.raises(UsageError, match="matches no cell"):
        resolve(load_policy("beat-by-20"), [])


def test_of_policy_and_user_the_stricter_bar_stands() -> None:
    for text, bar in (("ttft.p50 >= 1.5x", 1.5), ("ttft.p50 >= 1.1x", 1.2)):
        resolved = resolve((*load_policy("beat-by-20"), parse_criterion(text)), [STEADY])
        assert [c.value for c, cell in resolved if c.name == "ttft.p50" and cell] == [bar]


def test_what_follows_from_a_gateable_metric_is_gateable() -> None:
    cell = CellScope("a/c1", "a", frozenset({"output_throughput", "tpot.p50", "ttft.p95"}), 100)
    texts = [
        "throughput_per_gpu >= 1.2x",
        "output_throughput_per_user >= 1.2x",
        "ttft.p90 >= 1.2x",
        "tpot.mean >= 1.2x",
    ]
    assert len(resolve([parse_criterion(text) for text in texts], [cell])) == 4
    with pytest.raises(UsageError, match="request_throughput"):
        resolve([parse_criterion("request_throughput >= 1.2x")], [cell])
