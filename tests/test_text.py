"""Prompts: real language, the asked length, the same from the same seed, never the same from two."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from itertools import count as count_up
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from traffic_profiles.profile import ProfileError, load_profile
from traffic_profiles.requests import RequestSpec, make_requests
from traffic_profiles.text import GRAMMARS, STRATA, code
from traffic_profiles.text.ask import Ask, estimate_tokens, fit
from traffic_profiles.text.draw import Draw
from traffic_profiles.text.grammar import load_grammar

OWN = {
    "zh": "[\u4e00-\u9fff]",
    "ja": "[\u3040-\u30ff\u4e00-\u9fff]",
    "ru": "[\u0400-\u04ff]",
    "ar": "[\u0600-\u06ff]",
    "hi": "[\u0900-\u097f]",
}


def words(text: str) -> int:
    """A tokenizer that is independent of the estimate: words, and single marks."""
    return len(re.findall(r"\w{1,6}|[^\w\s]|\n", text))


def prompt(spec: RequestSpec) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in spec.messages)


def length(spec: RequestSpec, size: Any = estimate_tokens) -> int:
    return sum(size(message["content"]) for message in spec.messages)


# Same and never the same -------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_requests_in_another_process() -> None:
    here = [spec.item for spec in make_requests(load_profile("decode-hard"), count=9, seed=42)]
    script = (
        "from traffic_profiles.profile import load_profile; from traffic_profiles.requests import make_requests;"
        "print([s.item for s in make_requests(load_profile('decode-hard'), count=9, seed=42)])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "77"}
    )
    assert run.stdout.strip() == str(here)


def test_the_draws_are_pinned() -> None:
    """Another Python version or platform must give these too; a change here changes every published workload."""
    draw = Draw(7, "profile", 3)
    assert [draw.below(1000) for _ in range(4)] == [347, 533, 936, 793]
    assert draw.sample("abcdef", 3) == ["c", "a", "d"]
    items = json.dumps([spec.item for spec in make_requests(load_profile("decode-hard", "smoke"), count=4, seed=1)])
    assert hashlib.sha256(items.encode()).hexdigest()[:12] == "77c45a7fdbb8"


@pytest.mark.parametrize("name", ["smoke", "chat-steady", "decode-hard", "offline", "shared-prefix"])
def test_seeds_never_share_a_prompt(name: str) -> None:
    profile = load_profile(name, "smoke")
    seen: set[str] = set()
    for seed in range(250):
        for spec in make_requests(profile, count=4, seed=seed):
            assert spec.item not in seen
            seen.add(spec.item)
    assert len(seen) == 1000


def test_one_seed_never_repeats_a_prompt() -> None:
    specs = make_requests(load_profile("chat-steady", "smoke"), count=1500, seed=3)
    assert len({spec.item for spec in specs}) == len({spec.messages[1]["content"] for spec in specs}) == 1500


def test_equal_items_are_equal_messages() -> None:
    a, b = (make_requests(load_profile("smoke", "smoke"), count=2, seed=5) for _ in range(2))
    assert a == b
    assert a[0].item != a[1].item


# Length ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stratum", sorted(STRATA))
def test_a_length_is_met_within_five_percent(stratum: str) -> None:
    for target in (600, 2500):
        missed = []
        for seed in range(6):
            draw = Draw(seed, stratum, target)
            tries = (fit(STRATA[stratum](draw), target, words) for _ in range(12))
            missed.append(min(abs(words(text) - target) / target for text in tries))
        assert max(missed) <= 0.05, missed


@pytest.mark.parametrize("name", ["chat-steady", "rag-short-answer", "code-completion", "sweep", "shared-prefix"])
def test_requests_have_the_input_length_of_their_profile(name: str) -> None:
    profile = load_profile(name)
    lengths = [length(spec, words) for spec in make_requests(profile, count=40, seed=2, count_tokens=words)]
    assert sum(lengths) / len(lengths) == pytest.approx(profile.isl.mean, rel=0.12)
    assert max(lengths) <= profile.isl.longest * 1.05
    assert min(lengths) >= profile.isl.min * 0.95


@pytest.mark.parametrize("name", ["smoke", "chat-steady", "decode-easy", "reasoning-long-output", "interference"])
def test_no_request_needs_more_context_than_its_profile_says(name: str) -> None:
    profile = load_profile(name, "smoke")
    for spec in make_requests(profile, count=5, seed=8):
        assert length(spec) + spec.max_tokens <= profile.context_tokens


@given(st.integers(1, 400), st.integers(0, 2**32))
def test_fitting_cuts_nothing(target: int, seed: int) -> None:
    units = (f"<{number}:{'x' * Draw(seed, number).below(40)}>" for number in count_up())
    text = fit(Ask("open", "close", units), target, len)
    assert text.startswith("open") and text.endswith("close")
    assert re.fullmatch(r"open(?: <\d+:x*>)* close", text)
    if target >= 60:
        assert abs(len(text) - target) <= 45


def test_without_a_tokenizer_lengths_are_an_estimate_by_script() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("a" * 42) == 10
    assert estimate_tokens("字" * 11) == 10


# Language ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*GRAMMARS, "system", "report"])
def test_every_template_of_a_grammar_fills(name: str) -> None:
    grammar = load_grammar(name)
    for number, scenario in enumerate(grammar.scenarios):
        draw = Draw(number, name)
        bound = {key: grammar.fill(f"{{{source}}}", draw) for key, source in scenario.let.items()}
        for template in (*scenario.ask, *scenario.detail, *scenario.close, *scenario.reply):
            for _ in range(3):
                said = grammar.fill(template, draw, bound)
                assert said.strip() and not set("{}|") & set(said), said
        assert scenario.ask and (scenario.close or name == "system")
        assert len(scenario.detail) >= 5


@pytest.mark.parametrize("name", sorted(OWN))
def test_the_other_scripts_are_written_in_their_own_letters(name: str) -> None:
    for seed in range(20):
        text = fit(STRATA[name](Draw(seed, name)), 300, estimate_tokens)
        letters = [letter for letter in text if letter.isalpha()]
        assert sum(bool(re.match(OWN[name], letter)) for letter in letters) / len(letters) > 0.97
        assert not re.search("[A-Za-z]{2,}", text)
        assert text[-1] in "。．.?？؟।!" or name in ("zh", "ja")


def test_a_person_changes_the_subject_before_repeating_himself() -> None:
    draw = Draw(1, "en-chat")
    text = fit(STRATA["en-chat"](draw), 900, estimate_tokens)
    sentences = re.split(r"(?<=[.?!]) ", text)
    shapes = [re.sub(r"\d+", "#", sentence) for sentence in sentences]
    assert len(set(shapes)) > 0.9 * len(shapes)
    bridges = load_grammar("en-chat").bridge
    assert sum(text.count(bridge) for bridge in bridges) >= 2


def test_articles_agree() -> None:
    assert load_grammar("creative").fill("a {astronomer|archivist} and a {potter|baker}", Draw(1)).startswith("an a")


def test_code_is_python_under_a_new_name() -> None:
    for seed in range(10):
        shown = code.renamed(Draw(seed))
        assert f"def {shown.name}(" in shown.source
        assert re.fullmatch(r"[a-z]+_[a-z]+_[a-z]+\d+", shown.name)


def test_without_the_library_source_code_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> tuple[Path, ...]:
        raise FileNotFoundError("no source here")

    monkeypatch.setattr(code, "_modules", missing)
    with pytest.raises(ProfileError, match="decode-easy: no source here"):
        make_requests(load_profile("decode-easy", "smoke"), count=3, seed=1)


@pytest.mark.parametrize("stratum", ["rag", "documents"])
def test_the_answer_to_a_document_question_stands_in_the_documents_once(stratum: str) -> None:
    for seed in range(5):
        text = fit(STRATA[stratum](Draw(seed, stratum)), 1500, estimate_tokens)
        asked = re.search(r"in which locker does (.+?) keep the key to the (.+?) at (.+?), and", text)
        assert asked
        who, part, site = asked.groups()
        assert (
            len(re.findall(rf"{who} keeps the key to the {part} at {site} in locker \d+; the code is \d+", text)) == 1
        )


def test_function_definitions_are_json() -> None:
    text = fit(STRATA["json"](Draw(3, "json")), 800, estimate_tokens)
    tools = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert len(tools) > 3 and all(tool["parameters"]["type"] == "object" for tool in tools)


# What profiles ask for ---------------------------------------------------------------------------------------------


def test_strata_keep_their_proportions_in_a_dozen() -> None:
    profile = load_profile("decode-hard")
    weights = profile.text
    assert isinstance(weights, dict)
    for seed in range(5):
        strata = [spec.stratum for spec in make_requests(profile, count=20, seed=seed)]
        for name, weight in weights.items():
            assert abs(strata.count(name) - 20 * weight / sum(weights.values())) <= 1.5


def test_recorded_turns_alternate_and_end_with_a_question() -> None:
    specs = make_requests(load_profile("chat-steady"), count=40, seed=2)
    for spec in specs:
        roles = [message["role"] for message in spec.messages]
        assert roles[0] == "system" and roles[1] == roles[-1] == "user"
        assert all(a != b for a, b in pairwise(roles))
    assert max(len(spec.messages) for spec in specs) >= 6


def test_prefixes_are_shared_as_asked_and_differ_between_seeds() -> None:
    profile = load_profile("shared-prefix", "smoke")
    specs = make_requests(profile, count=6, seed=2)
    heads = [spec.messages[0]["content"] for spec in specs]
    assert heads[0::2] == [heads[0]] * 3 and heads[1::2] == [heads[1]] * 3 and heads[0] != heads[1]
    assert make_requests(profile, count=1, seed=3)[0].messages[0]["content"] not in heads


def test_a_salt_opens_every_prompt_so_that_no_prefix_is_shared() -> None:
    starts = [prompt(spec)[:26] for spec in make_requests(load_profile("decode-easy", "smoke"), count=40, seed=1)]
    assert len(set(starts)) == 40 and all(start.startswith("user: Ticket ") for start in starts)


def test_blocks_with_one_hash_are_one_text() -> None:
    profile = load_profile("mooncake").with_changes(requests={"minimum": 60})
    rows = [json.loads(line) for line in (Path(profile.path).parent / "traces/mooncake.jsonl").open()]
    rows = sorted((row for row in rows if row["input_length"] <= 48_000), key=lambda row: row["timestamp"])
    specs = make_requests(profile, count=60, seed=4)
    texts = [spec.messages[0]["content"] for spec in specs]
    for a in range(60):
        for b in range(a):
            same = list(
                takewhile(lambda pair: pair[0] == pair[1], zip(rows[a]["hash_ids"], rows[b]["hash_ids"], strict=False))
            )
            # A prompt's last blocks are its own words, so the text may part a few blocks before the ids do.
            common = len(_common(texts[a], texts[b]))
            assert 150 * (len(same) - 4) <= common <= 320 * len(same) + 40


def _common(a: str, b: str) -> str:
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:at]


def test_fixed_length_and_sampling_reach_the_request() -> None:
    fixed = make_requests(load_profile("decode-hard-fixed", "smoke"), count=2, seed=1)
    assert all(spec.fixed_length and spec.max_tokens == 48 for spec in fixed)
    assert {(spec.temperature, spec.top_p) for spec in fixed} == {(0.8, 0.95)}
    assert len({spec.seed for spec in fixed}) == 2


# The user's own prompts --------------------------------------------------------------------------------------------


def own_text(tmp_path: Path, lines: str, **isl: int) -> Any:
    (tmp_path / "mine.jsonl").write_text(lines)
    profile = {
        "schema_version": 1,
        "name": "mine",
        "purpose": "p",
        "bottleneck": "b",
        "source": "s",
        "text": "mine.jsonl",
        "isl": {"mean": 10, "stddev": 5, "min": 2, "max": 50} | isl,
        "osl": 20,
        "concurrency": [1],
        "requests": {"per_concurrency": 4},
        "gateable": [],
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(profile))
    return load_profile(tmp_path / "mine.yaml")


def test_a_users_prompts_are_dealt_whole_and_salted(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"prompt": f"Question {n}: why?", "stratum": "why"}) + "\n" for n in range(5))
    lines += json.dumps(
        {"messages": [{"role": "system", "content": "Be kind to all."}, {"role": "user", "content": "Hi"}]}
    )
    lines += "\n" + json.dumps({"question": "long " * 200}) + "\n"
    profile = own_text(tmp_path, lines)
    specs = make_requests(profile, count=6, seed=1)
    assert {spec.stratum for spec in specs} == {"why", "file"}
    assert len({spec.messages[-1]["content"].split("\n\n")[-1] for spec in specs}) == 6
    again = make_requests(profile, count=6, seed=2)
    assert not {spec.item for spec in specs} & {spec.item for spec in again}


@pytest.mark.parametrize(
    ("lines", "said"),
    [("", "holds no rows"), ("{nope\n", "not JSON"), ('{"x": 1}\n', "row 1 has no messages"), ('["a"]\n', "row 1")],
)
def test_a_broken_file_of_prompts_is_a_sentence(tmp_path: Path, lines: str, said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        make_requests(own_text(tmp_path, lines), count=1, seed=1)


def test_prompts_outside_isl_are_left_out_and_never_cut(tmp_path: Path) -> None:
    profile = own_text(tmp_path, json.dumps({"prompt": "word " * 500}) + "\n")
    with pytest.raises(ProfileError, match=r"none of the 1 prompts .* has 2 to 50 tokens"):
        make_requests(profile, count=1, seed=1)


def test_a_data_set_by_name(tmp_path: Path) -> None:
    """`hub:` takes whatever `datasets` loads by a name; here a folder, so that nothing is fetched."""
    pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    rows = [json.dumps({"instruction": f"Name {n} rivers.", "category": "lists"}) for n in range(3, 8)]
    (tmp_path / "set" / "data.jsonl").write_text("\n".join(rows) + "\n")
    profile = own_text(tmp_path, "").model_copy(update={"text": f"hub:{tmp_path / 'set'}"})
    specs = make_requests(profile, count=5, seed=1)
    assert {spec.stratum for spec in specs} == {"lists"} and len({spec.item for spec in specs}) == 5
    assert all(re.search(r"Name \d rivers\.$", spec.messages[-1]["content"]) for spec in specs)
    missing = profile.model_copy(update={"text": f"hub:{tmp_path / 'none'}"})
    with pytest.raises(ProfileError, match="cannot be loaded"):
        make_requests(missing, count=1, seed=1)
