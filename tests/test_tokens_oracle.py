"""The token oracle and its noise floor, on answers whose quality is known because the reference wrote them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles.answers import Visit, keys_with_ids
from oracles.floor import measure_floor
from oracles.reference import OracleError
from oracles.result import OracleResult
from oracles.token_table import loop
from oracles.tokens import score_arm
from tests.tiny_model import tiny_reference

END = 2
PROMPTS = [f"Explain how the number {i} works." for i in range(6)]


@cache
def greedy(prompt: str, tokens: int = 24) -> tuple[int, ...]:
    """What an exact engine answers at temperature 0."""
    reference = tiny_reference()
    ids = torch.tensor([reference.prompt_ids([{"role": "user", "content": prompt}])])
    with torch.inference_mode():
        out = reference.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return tuple(out[0, ids.shape[1] :].tolist())


def asked(line: int, **changes: Any) -> dict[str, Any]:
    messages = json.dumps([{"role": "user", "content": PROMPTS[line % len(PROMPTS)]}])
    row = {
        "line": line, "cell": "chat/c1", "kind": "load", "item": f"item-{line % 3}", "stratum": "en",
        "temperature": 0.0, "fixed_length": False, "stop": [], "messages": messages,
    }  # fmt: skip
    return row | changes


def came(line: int, ids: tuple[int, ...] | None = None, **changes: Any) -> dict[str, Any]:
    answer = list(greedy(PROMPTS[line % len(PROMPTS)]) if ids is None else ids)
    row = {
        "line": line, "status": "ok", "finish_reason": "length",
        "text": changes["text"] if "text" in changes else tiny_reference().decode(answer),
        "reasoning": "", "token_ids": answer, "usage_prompt_tokens": 40,
    }  # fmt: skip
    return row | changes


REQUESTS = pa.schema(
    [
        ("line", pa.int32()), ("status", pa.string()), ("finish_reason", pa.string()), ("text", pa.string()),
        ("reasoning", pa.string()), ("token_ids", pa.list_(pa.int32())), ("usage_prompt_tokens", pa.int32()),
    ]
)  # fmt: skip


def write(folder: Path, asked_: list[dict[str, Any]], came_: list[dict[str, Any]], pair: int = 1) -> Visit:
    folder.mkdir(exist_ok=True, parents=True)
    pq.write_table(pa.Table.from_pylist(asked_), folder / "workload.parquet")
    pq.write_table(pa.Table.from_pylist(came_, REQUESTS), folder / "requests.parquet")
    return Visit(pair, folder / "requests.parquet", folder / "workload.parquet")


def scored(folder: Path, visit: Visit, **how: Any) -> tuple[OracleResult, list[dict[str, Any]]]:
    result = score_arm([visit], tiny_reference(), "candidate", folder / "out", **how)
    assert OracleResult.model_validate_json((folder / "out" / "tokens.json").read_text()) == result
    return result, pq.read_table(folder / "out" / "tokens.parquet").to_pylist()


def six(**changes: Any) -> list[dict[str, Any]]:
    return [came(i, **changes) for i in range(6)]


def test_the_reference_agrees_with_itself(tmp_path: Path) -> None:
    result, rows = scored(tmp_path, write(tmp_path, [asked(i) for i in range(6)], six()), tie_width=0.1)
    assert result.metrics["top1"].value == 1.0
    assert result.metrics["margin"].value == pytest.approx(0, abs=1e-6)
    assert result.metrics["flips_inexcusable"].value == 0
    assert result.metrics["scored_share"].value == 1.0
    assert [row["line"] for row in rows] == list(range(6))
    for row in rows:
        assert row["tokens"] == len(row["ids"]) == len(row["margins"]) == len(row["logprobs"]) == len(row["ranks"])
        assert row["margin_sum"] == pytest.approx(sum(row["margins"]), abs=1e-5)
        assert row["nll_sum"] == pytest.approx(-sum(row["logprobs"]), rel=1e-5)
        assert row["margin_first64"] == pytest.approx(row["margin_sum"])  # 24 tokens
        assert row["ids_source"] == "engine"


def test_one_wrong_token_in_each_answer_is_seen(tmp_path: Path) -> None:
    wrong = [came(i, (*greedy(PROMPTS[i])[:10], 300 + i, *greedy(PROMPTS[i])[11:])) for i in range(6)]
    result, rows = scored(tmp_path, write(tmp_path, [asked(i) for i in range(6)], wrong), tie_width=0.1)
    assert all(row["margins"][10] > 0.1 for row in rows)
    assert all(row["margin_max"] == max(row["margins"]) for row in rows)
    assert result.metrics["top1"].value < 1
    assert result.metrics["flips_inexcusable"].value > 0


def test_warm_up_is_left_out_and_failures_are_counted(tmp_path: Path) -> None:
    came_ = six()
    came_[1]["status"] = "timeout"
    came_[2] = came(2, text="", token_ids=None)
    visit = write(tmp_path, [asked(0, kind="warmup"), *(asked(i) for i in range(1, 7))], came_)
    result, rows = scored(tmp_path, visit)
    assert [row["line"] for row in rows] == [3, 4, 5]
    assert result.metrics["scored_share"].value == 0.5
    assert result.metrics["scored_share"].n == 6
    notes = " ".join(result.notes)
    assert "1 of 6 requests not scored: the request ended in timeout." in notes
    assert "the answer is empty" in notes
    assert "ended in missing" in notes  # line 6 was asked and left no row


def test_nothing_scorable_is_unscored_with_a_reason(tmp_path: Path) -> None:
    result, rows = scored(tmp_path, write(tmp_path, [asked(0)], [came(0, status="http_error")]))
    assert (result.status, rows) == ("unscored", [])
    assert result.reason == "No timed answer could be scored."


@pytest.mark.parametrize(
    ("finish", "stop", "ids", "ends"),
    [
        ("stop", [], (70, 71), True),  # the end token that the engine kept to itself is scored: early EOS shows
        ("stop", [], (70, 71, END), True),
        ("length", [], (70, 71), False),
        ("stop", ["x"], (70, 71), False),  # a stop string may have ended it
    ],
)
def test_the_end_token_is_scored_when_it_was_produced(
    tmp_path: Path, finish: str, stop: list[str], ids: tuple[int, ...], ends: bool
) -> None:
    visit = write(tmp_path, [asked(0, stop=stop)], [came(0, ids, finish_reason=finish)])
    _, rows = scored(tmp_path, visit)
    assert rows[0]["ids"] == ([70, 71, END] if ends else [70, 71])


def test_stopping_early_costs_margin(tmp_path: Path) -> None:
    early = [came(i, greedy(PROMPTS[i])[:5], finish_reason="stop") for i in range(6)]
    result, rows = scored(tmp_path, write(tmp_path, [asked(i) for i in range(6)], early))
    assert all(row["ids"][-1] == END for row in rows)
    assert all(row["margins"][-1] > 1 for row in rows)
    assert result.metrics["top1"].value == pytest.approx(5 / 6)


def test_both_arms_are_scored_alike(tmp_path: Path) -> None:
    asked_ = [asked(i) for i in range(3)]
    baseline = write(tmp_path / "b", asked_, [came(0), came(1), came(2, token_ids=None)])
    candidate = write(tmp_path / "c", asked_, [came(0), came(1, token_ids=None), came(2)])
    shared = keys_with_ids([baseline]) & keys_with_ids([candidate])
    assert shared == {(1, 0)}
    for name, visit in (("b", baseline), ("c", candidate)):
        _, rows = scored(tmp_path / name, visit, engine_ids=shared)
        assert [row["ids_source"] for row in rows] == ["engine", "retokenised", "retokenised"]


def test_ids_that_do_not_spell_the_text_are_not_believed(tmp_path: Path) -> None:
    good = greedy(PROMPTS[0])
    faked = came(0, good, text="a a a a a a a a")
    outside = came(1, (5, 99999), text="Paris")
    negative = came(2, (5, -1), text="Paris")
    result, rows = scored(tmp_path, write(tmp_path, [asked(i) for i in range(3)], [faked, outside, negative]))
    assert [row["ids_source"] for row in rows] == ["retokenised"] * 3
    assert result.metrics["refused_ids"].value == 3
    assert "do not spell their text" in result.notes[0]
    assert tiny_reference().decode(rows[0]["ids"]) == "a a a a a a a a"


def test_a_cut_character_at_the_end_is_forgiven(tmp_path: Path) -> None:
    smile = tiny_reference().encode_output("hello 🙂")
    answer = came(0, tuple(smile[:-1]), text="hello ")
    _, rows = scored(tmp_path, write(tmp_path, [asked(0)], [answer]))
    assert rows[0]["ids_source"] == "engine"


def test_reasoning_needs_ids(tmp_path: Path) -> None:
    ids = tuple(tiny_reference().encode_output("think first. Paris"))
    answers = [came(i, ids, text=" Paris", reasoning="think first.") for i in range(2)]
    answers[1]["token_ids"] = None
    result, rows = scored(tmp_path, write(tmp_path, [asked(0), asked(1)], answers))
    assert [row["line"] for row in rows] == [0]
    assert "reasoning text without token ids" in result.notes[0]


def test_an_answer_past_the_context_is_cut_and_said(tmp_path: Path) -> None:
    result, rows = scored(tmp_path, write(tmp_path, [asked(0)], [came(0, (70,) * 3000)]))
    assert rows[0]["prompt_tokens"] + rows[0]["tokens"] == 2048
    assert result.metrics["cut_at_context"].value == 1
    assert "run past the reference's context" in result.notes[0]


def test_a_prompt_that_cannot_be_rendered(tmp_path: Path) -> None:
    long = json.dumps([{"role": "user", "content": "x" * 9000}])
    visit = write(tmp_path, [asked(0, messages="{"), asked(1, messages=long), asked(2)], [came(i) for i in range(3)])
    result, rows = scored(tmp_path, visit)
    assert [row["line"] for row in rows] == [2]
    notes = " ".join(result.notes)
    assert "could not be rendered" in notes
    assert "fills the reference's context" in notes


def test_sampled_answers_are_judged_by_excess_nll(tmp_path: Path) -> None:
    visit = write(tmp_path, [asked(i, temperature=1.0) for i in range(6)], six())
    result, rows = scored(tmp_path, visit)
    assert "margin" not in result.metrics
    nll, entropy = sum(r["nll_sum"] for r in rows), sum(r["entropy_sum"] for r in rows)
    excess = result.metrics["excess_nll"]
    assert excess.value == pytest.approx((nll - entropy) / sum(r["tokens"] for r in rows))
    assert excess.value < 0  # greedy text served at T=1 is more likely than honest samples are


def test_ignoring_the_end_token_is_not_held_against_an_engine_told_to(tmp_path: Path) -> None:
    """llama.cpp bans end tokens under ignore_eos; the next best token is then the right one."""
    reference = tiny_reference()
    prompt = reference.prompt_ids([{"role": "user", "content": PROMPTS[0]}])
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        logits = reference.model(ids).logits[0, -1]
    second = int(logits.topk(2).indices[1])
    boosted = int(logits.argmax())
    visit = write(tmp_path, [asked(0, fixed_length=True)], [came(0, (second,))])
    object.__setattr__(reference, "end_token_ids", frozenset({boosted}))
    try:
        _, rows = scored(tmp_path, visit)
    finally:
        object.__setattr__(reference, "end_token_ids", frozenset({END}))
    assert rows[0]["margins"] == [0]


def test_prompt_tokens_offset(tmp_path: Path) -> None:
    rendered = len(tiny_reference().prompt_ids([{"role": "user", "content": PROMPTS[0]}]))
    result, _ = scored(tmp_path, write(tmp_path, [asked(0)], [came(0, usage_prompt_tokens=rendered + 3)]))
    assert result.metrics["prompt_tokens_offset"].value == 3


def test_intervals_resample_documents(tmp_path: Path) -> None:
    wrong = six()
    wrong[0] = came(0, (*greedy(PROMPTS[0])[:5], 300, 301, 302))
    metric = scored(tmp_path, write(tmp_path, [asked(i) for i in range(6)], wrong))[0].metrics["margin"]
    assert metric.ci_low is not None and metric.ci_high is not None and metric.value is not None
    assert metric.ci_low <= metric.value <= metric.ci_high


def test_a_missing_column_names_the_file(tmp_path: Path) -> None:
    visit = write(tmp_path, [asked(0)], [came(0)])
    pq.write_table(pq.read_table(visit.requests).drop(["token_ids"]), visit.requests)
    with pytest.raises(OracleError, match=r"requests.parquet cannot be read"):
        score_arm([visit], tiny_reference(), "candidate", tmp_path / "out")


def test_weights_that_give_nan_are_unscored(tmp_path: Path) -> None:
    reference = tiny_reference()
    weight = reference.model.get_decoder().norm.weight
    before = weight.clone()
    weight.fill_(float("nan"))
    try:
        result, _ = score_arm([write(tmp_path, [asked(0)], [came(0)])], reference, "candidate", tmp_path / "out"), None
    finally:
        weight.copy_(before)
    assert result.status == "unscored"
    assert "not finite" in result.reason


@given(st.lists(st.integers(0, 3), max_size=60))
def test_loop_is_the_longest_repetition(ids: list[int]) -> None:
    share, entry = loop(ids)
    best = 0
    for period in range(1, 17):
        for start in range(len(ids)):
            stop = start + period
            while stop < len(ids) and ids[stop] == ids[stop - period]:
                stop += 1
            if stop - start >= 3 * period:
                best = max(best, stop - start)
    assert share == pytest.approx(best / len(ids) if ids else 0)
    assert (entry is None) == (best == 0)


def test_loop_entry_is_where_the_repeating_begins() -> None:
    assert loop([9, 8, 1, 2, 3, 1, 2, 3, 1, 2, 3]) == (pytest.approx(9 / 11), 5)
    assert loop([1, 2, 3, 4]) == (0.0, None)


def test_the_floor_reads_the_reference_against_itself(tmp_path: Path) -> None:
    visit = write(tmp_path, [asked(i) for i in range(6)], six())
    seen: list[tuple[int, int]] = []
    reference = tiny_reference("bfloat16")
    floor = measure_floor([visit], reference, tmp_path / "floor", progress=lambda *done: seen.append(done))
    assert floor.result.status == "scored"
    assert floor.tie_width is not None and 0 < floor.tie_width < 1
    metrics = floor.result.metrics
    assert {"margin.precision", "margin.attention", "margin.batch", "margin", "tie_width"} <= metrics.keys()
    largest = max(metrics[f"margin.{name}"].value or 0 for name in ("precision", "attention", "batch"))
    assert metrics["margin"].value == pytest.approx(largest)
    rows = pq.read_table(tmp_path / "floor" / "tokens.parquet").to_pylist()
    assert {row["line"] for row in rows} == set(range(6))
    assert all(m >= 0 for row in rows for m in row["margins"])
    assert seen[-1][0] <= seen[-1][1]
    assert reference.model.config._attn_implementation == "sdpa"  # as it was


def test_the_floor_stays_within_its_tokens_and_is_repeatable(tmp_path: Path) -> None:
    visit = write(tmp_path, [asked(i) for i in range(6)], six())
    reference = tiny_reference("bfloat16")
    tables = []
    for name in "ab":
        measure_floor([visit], reference, tmp_path / name, max_tokens=60, numerics=("batch",))
        tables.append(pq.read_table(tmp_path / name / "tokens.parquet"))
    assert sum(tables[0]["tokens"].to_pylist()) <= 60
    assert tables[0].equals(tables[1])


def test_no_answer_no_floor(tmp_path: Path) -> None:
    floor = measure_floor([write(tmp_path, [asked(0)], [])], tiny_reference("bfloat16"), tmp_path / "floor")
    assert (floor.tie_width, floor.result.status) == (None, "unscored")
