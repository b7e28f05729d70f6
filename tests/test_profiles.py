"""Traffic profiles: what ships, what is refused and in which words, and what a user's own file may do."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from traffic_profiles import describe
from traffic_profiles.arrivals import read_arrivals, requests_per_s
from traffic_profiles.dataset import dataset_lines
from traffic_profiles.lengths import Lengths
from traffic_profiles.profile import ProfileError, TrafficProfile, list_profiles, load_profile, load_tiers
from traffic_profiles.requests import make_requests
from traffic_profiles.rules import METRICS
from traffic_profiles.text.draw import Draw

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "traffic_profiles"
SHAPES = {
    *("decode-easy", "decode-hard", "chat-steady", "rag-short-answer", "long-context", "agentic-growing-prefix"),
    *("code-completion", "reasoning-long-output", "burst", "poisson-at-slo", "sweep", "mooncake", "azure"),
    *("interference", "offline", "shared-prefix", "smoke"),
}
OWN: dict[str, Any] = {
    "schema_version": 1,
    "name": "mine",
    "purpose": "p",
    "bottleneck": "b",
    "source": "s",
    "text": "en-chat",
    "isl": 100,
    "osl": 20,
    "concurrency": [2],
    "requests": {"per_concurrency": 10},
    "gateable": ["tpot.p50"],
}


def own(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in (OWN | changes).items() if value is not None}))
    return path


def refusal(path: Path | str, tier: str = "gate") -> str:
    with pytest.raises(ProfileError) as caught:
        load_profile(path, tier)
    return str(caught.value)


def test_the_sixteen_shapes_and_smoke_ship() -> None:
    assert set(list_profiles()) == SHAPES


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_shape_says_what_it_imitates_and_why_every_other_metric_is_not_gated(name: str) -> None:
    header = "".join(line for line in (FOLDER / f"{name}.yaml").open() if line.startswith("#"))
    for word in ("# Imitates:", "# Why", "# Loads:", "# Source:"):
        assert word in header
    for profile in load_tiers(name):
        assert profile.name == name
        assert profile.gateable <= set(METRICS)
        twin = [load_profile(f"{name}-fixed", profile.tier)] if profile.fixed_twin else []
        for one in (profile, *twin):
            for metric in set(METRICS) - one.gateable:
                assert "does not list it" not in describe.why_not(one, metric), (one.name, one.tier, metric)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_smoke_is_small_and_gate_fits_8k_unless_the_shape_is_long(name: str) -> None:
    smoke, gate, nightly = load_tiers(name)
    assert smoke.context_tokens <= 2560
    assert gate.context_tokens <= 8192 or name == "long-context"
    assert smoke.context_tokens <= gate.context_tokens <= nightly.context_tokens
    assert not smoke.needs_capacity, "smoke runs without measuring a capacity first"


def test_every_decode_shape_has_a_fixed_twin() -> None:
    twin = load_profile("decode-easy-fixed")
    assert twin.stop == "fixed" and twin.name == "decode-easy-fixed"
    assert "request_latency.p95" in twin.gateable
    assert load_profile("decode-hard-fixed").stop == "fixed"
    assert load_profile("reasoning-long-output-fixed").stop == "fixed"


def test_request_counts_follow_the_load() -> None:
    steady = load_profile("chat-steady")
    assert [steady.requests_for(c) for c in (1, 4, 8)] == [24, 24, 48]
    assert steady.warmup_requests_for(8) == 16
    assert load_profile("code-completion").requests_for(2.0) == 120


def test_rates_that_are_shares_become_absolute() -> None:
    burst = load_profile("burst").at_capacity(4.0)
    assert burst.request_rate == (2.8,) and not burst.needs_capacity
    mooncake = load_profile("mooncake").at_capacity(1.0)
    assert mooncake.trace is not None and not mooncake.needs_capacity
    assert requests_per_s(read_arrivals(mooncake.trace, mooncake.path, 300)) == pytest.approx(0.7, rel=0.001)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"isll": 5}, ["'isll' is not known", "did you mean isl?"]),
        ({"sampling": {"temperatur": 1}}, ["sampling.temperatur", "did you mean temperature?"]),
        ({"isl": None}, ["'isl' is missing"]),
        ({"osl": None, "ols": 5}, ["'ols' is not known", "did you mean osl", "1 more"]),
        ({"isl": {"mean": 5, "stddev": 1}}, ["isl", "needs max"]),
        ({"isl": float("nan")}, ["isl holds", "not finite"]),
        ({"isl": "100"}, ["isl"]),
        ({"text": "en-chatt"}, ["'en-chatt' is not known", "en-chat"]),
        ({"text": {"zh": 1, "xx": 2}}, ["'xx' is not known"]),
        ({"text": "mine.jsonl", "cache_bust": "none"}, ["cache_bust"]),
        ({"concurrency": None}, ["exactly one of concurrency, request_rate, trace"]),
        ({"request_rate": [1.0], "arrival_pattern": "poisson"}, ["exactly one of"]),
        ({"concurrency": [0]}, ["concurrency.0"]),
        ({"arrival_pattern": "poisson"}, ["goes with request_rate"]),
        ({"gateable": ["ttft.p5"]}, ["'ttft.p5' is not known", "ttft.p50"]),
        ({"gateable": ["ttft.p99"]}, ["20 requests in the smallest cell", "p99 needs 1000"]),
        ({"gateable": ["request_latency.p50"]}, ["a shorter one would win"]),
        ({"gateable": ["goodput"]}, ["states no slo"]),
        ({"requests": {"seconds": 5.0}}, ["per_concurrency in closed loop"]),
        ({"requests": {"per_concurrency": 1}, "gateable": ["ttft.p50"]}, ["how long the queue is"]),
        ({"prefix_prompts": {"length": 200}, "cache_bust": "none"}, ["isl.min must be prefix_prompts.length + 16"]),
        ({"prefix_prompts": {"length": 20}}, ["keep one of them"]),
        ({"tiers": {"fast": {}}}, ["tiers holds smoke, gate, nightly"]),
        ({"tiers": {"gate": {"osll": 3}}}, ["(tier gate)", "did you mean osl"]),
        ({"schema_version": 2}, ["schema_version"]),
        ({"name": "../x"}, ["name"]),
    ],
)
def test_a_wrong_key_or_value_is_one_sentence_with_file_and_key(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    said = refusal(own(tmp_path, **changes))
    assert str(tmp_path / "mine.yaml") in said and "\n" not in said
    for word in words:
        assert word in said


def test_throughput_is_not_gated_in_open_loop(tmp_path: Path) -> None:
    path = own(
        tmp_path,
        concurrency=None,
        request_rate=[2.0],
        arrival_pattern="poisson",
        requests={"seconds": 30.0},
        gateable=["output_throughput"],
    )
    assert "the ratio is 1 by construction" in refusal(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x [1]\nb: *x\n", "line 2: aliases"),
        ("name: a\nname: b\n", "line 2: key 'name' appears twice"),
        ("- 1\n- 2\n", "must hold keys"),
        ("a: [\n", "line"),
        ("name: !!python/object/apply:os.system ['true']\n", "constructor"),
        ("purpose: 2024-01-01\n", "purpose holds a date"),
        ("x: " + "a" * 70_000, "larger than 64 KiB"),
        ("[" * 5000, "line 1: nested too deeply"),
    ],
)
def test_hostile_yaml_is_refused_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert words in refusal(path)


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refusal(path)


def test_unknown_names_get_near_matches(tmp_path: Path) -> None:
    assert "did you mean chat-steady" in refusal("chat-stedy")
    assert "known: agentic-growing-prefix, azure" in refusal("zzzzzz")
    assert "no profile file" in refusal(tmp_path / "none.yaml")
    assert "no fixed-length twin" in refusal("smoke-fixed")
    assert "did you mean smoke" in refusal("smoke", tier="smok")


def test_a_context_that_is_too_short_is_an_error_and_never_a_cut() -> None:
    profile = load_profile("long-context")
    profile.check_context(40_000)
    with pytest.raises(ProfileError, match="needs a context of 34088 tokens and the endpoint has 8192"):
        profile.check_context(8192)


def test_the_users_own_file_is_checked_tier_by_tier(tmp_path: Path) -> None:
    path = own(tmp_path, tiers={"smoke": {"isl": 40}, "nightly": {"concurrency": [64]}})
    lines = describe.check(path)
    assert len(lines) == 3 and "concurrency 64" in lines[2]
    assert load_profile(path, "smoke").isl.mean == 40
    assert "schema_version: 1" in describe.show(path)


def test_the_schema_file_is_current_and_every_shape_fits_it() -> None:
    written = json.loads((ROOT / "docs" / "profile.schema.json").read_text())
    assert written == describe.json_schema(), "write it anew: docs/profiles.md, last section"
    for name in SHAPES:
        jsonschema.validate(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()), written)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(OWN | {"isll": 5}, written)


def test_the_table_in_the_documentation_is_current() -> None:
    page = (ROOT / "docs" / "profiles.md").read_text()
    assert describe.markdown_table() in page


def test_the_catalogue_and_a_profile_in_full_are_plain_data() -> None:
    rows = describe.catalogue("smoke")
    assert {row["name"] for row in rows} == SHAPES
    told = json.loads(json.dumps(describe.describe(load_profile("agentic-growing-prefix"))))
    assert told["dataset_format"] == "dag_jsonl"
    # 8 conversations of 6 turns: the context grows by the turn and by the reply before it.
    assert told["cells"]["4"] == {
        "requests": 8,
        "input_tokens": 8 * (6 * 2400 + (360 + 200) * 15),
        "output_tokens": 8 * 6 * 200,
    }


# Traces ------------------------------------------------------------------------------------------------------------

MOONCAKE = (
    '{"timestamp": 5000, "input_length": 900, "output_length": 20, "hash_ids": [7, 8]}\n'
    '{"timestamp": 7000, "input_length": 700, "output_length": 30, "hash_ids": [7, 9]}\n'
    '{"timestamp": 6000, "input_length": 90000, "output_length": 30, "hash_ids": [7, 9]}\n'
)
BURST_GPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,API log
45,GPT-4,1087,230,1317,Conversation log
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,374,44
2023-11-16 18:17:04.0319600,396,109
"""


def trace_profile(tmp_path: Path, kind: str, text: str, **trace: Any) -> TrafficProfile:
    (tmp_path / "day.csv").write_text(text)
    path = own(
        tmp_path,
        isl={"mean": 1000, "median": 900, "max": 2000},
        osl={"mean": 100, "median": 90, "max": 400},
        concurrency=None,
        trace={"format": kind, "file": "day.csv"} | trace,
        requests={"minimum": 2},
        gateable=[],
    )
    return load_profile(path)


@pytest.mark.parametrize(
    ("kind", "text", "times", "outputs"),
    [
        ("mooncake_trace", MOONCAKE, [0.0, 2000.0], [20, 30]),
        ("burst_gpt_trace", BURST_GPT, [0.0, 40_000.0], [18, 230]),
        ("azure_trace", AZURE, [0.0, 52.0], [44, 109]),
    ],
)
def test_a_users_own_trace_gives_times_and_lengths(
    tmp_path: Path, kind: str, text: str, times: list[float], outputs: list[int]
) -> None:
    profile = trace_profile(tmp_path, kind, text, max_isl=2000)
    specs = make_requests(profile, count=2, seed=1)
    assert profile.dataset_format == "mooncake_trace"
    assert [spec.timestamp_ms for spec in specs] == times
    assert [spec.max_tokens for spec in specs] == outputs
    fast = profile.with_changes(trace={"format": kind, "file": "day.csv", "speedup_ratio": 4.0, "max_isl": 2000})
    assert make_requests(fast, count=2, seed=1)[1].timestamp_ms == times[1] / 4


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("mooncake_trace", '{"timestamp": 1}\n', "entry 1: not a mooncake_trace entry"),
        ("mooncake_trace", "{nope\n", "entry 1: not a mooncake_trace entry"),
        ("mooncake_trace", '{"timestamp": 1, "input_length": -4, "output_length": 3}\n', "must not be negative"),
        ("mooncake_trace", '{"timestamp": NaN, "input_length": 4, "output_length": 3}\n', "must not be negative"),
        ("mooncake_trace", '{"timestamp": 1, "input_length": 4, "output_length": 3}\n', "has 1 requests"),
        ("burst_gpt_trace", "a,b\n1,2\n", "entry 1: not a burst_gpt_trace entry"),
        ("azure_trace", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,3,4\n", "entry 1: not a azure_trace entry"),
        ("mooncake_trace", MOONCAKE, "beyond isl.max 2000"),
    ],
)
def test_a_broken_trace_is_a_sentence(tmp_path: Path, kind: str, text: str, words: str) -> None:
    profile = trace_profile(tmp_path, kind, text)
    with pytest.raises(ProfileError) as caught:
        make_requests(profile, count=3 if "beyond" in words else 2, seed=1)
    assert words in str(caught.value)


def test_a_missing_trace_names_the_file(tmp_path: Path) -> None:
    profile = trace_profile(tmp_path, "mooncake_trace", MOONCAKE, file="none.jsonl")
    with pytest.raises(ProfileError, match=r"trace\.file none\.jsonl"):
        make_requests(profile, count=2, seed=1)


def test_the_slices_are_what_their_script_draws() -> None:
    path = FOLDER / "traces" / "make_slices.py"
    spec = importlib.util.spec_from_file_location("make_slices", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, rows in module.slices().items():
        assert (path.parent / name).read_text() == module.text(rows), name


# AIPerf's data set lines -------------------------------------------------------------------------------------------


def body(spec: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(spec.messages), "max_tokens": spec.max_tokens, "seed": 1, "stream": True}


def test_single_turns_are_raw_bodies() -> None:
    profile = load_profile("smoke", "smoke")
    specs = make_requests(profile, count=3, seed=1)
    assert list(dataset_lines(profile.dataset_format, specs, body)) == [body(spec) for spec in specs]


def test_a_trace_carries_its_send_times_and_whole_bodies() -> None:
    profile = load_profile("interference", "smoke")
    lines = list(dataset_lines(profile.dataset_format, make_requests(profile, count=5, seed=1), body))
    assert [line["timestamp"] for line in lines] == [0, 0, 2000, 4000, 6000]
    assert [line["payload"]["max_tokens"] for line in lines] == [64, 64, 1, 1, 1]


def test_live_conversations_carry_turns_and_pauses() -> None:
    profile = load_profile("agentic-growing-prefix", "smoke")
    lines = list(dataset_lines(profile.dataset_format, make_requests(profile, count=2, seed=1), body))
    assert len({line["session_id"] for line in lines}) == 2
    for line in lines:
        first, *later = line["turns"]
        assert [m["role"] for m in first["messages"]] == ["system", "user"] and "delay" not in first
        assert len(later) == 2
        for turn in later:
            assert [m["role"] for m in turn["messages"]] == ["user"]
            assert 20 <= turn["delay"] <= 300
            assert turn["extra"] == {"max_tokens": 32, "seed": 1}


# Distributions -----------------------------------------------------------------------------------------------------


@given(
    st.floats(1, 5000),
    st.floats(0, 3),
    st.floats(0, 0.9),
    st.floats(1, 3),
    st.booleans(),
    st.integers(0, 2**63 - 1),
)
def test_a_draw_stays_inside_its_bounds(
    mean: float, spread: float, low: float, high: float, lognormal: bool, seed: int
) -> None:
    shape = {"median": mean / (1 + spread)} if lognormal else {"stddev": mean * spread}
    lengths = Lengths(mean=mean, min=mean * low, max=mean * high, **shape)
    value = lengths.sample(Draw(seed))
    assert 1 <= value <= max(1, lengths.longest)
    assert value >= min(lengths.shortest, lengths.longest) - 1


def test_means_come_out_as_asked() -> None:
    for lengths in (
        Lengths(mean=1000, stddev=100, min=1, max=2000),
        Lengths(mean=1000, median=800, min=1, max=100_000),
    ):
        draw = Draw(1)
        values = [lengths.sample(draw) for _ in range(4000)]
        assert sum(values) / len(values) == pytest.approx(1000, rel=0.03)
