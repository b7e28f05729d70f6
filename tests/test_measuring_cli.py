"""`enginegate doctor` as a user meets it: a table, JSON, one sentence and an exit code for every mistake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from harness import calibration, checkup
from harness.arguments import concurrencies, extra_inputs, named_urls, timing
from harness.calibration import compare
from harness.cli import main
from harness.errors import UsageError
from harness.probes import Capability, Support
from harness.progress import silent
from tests.engines.dialects import DIALECTS
from tests.engines.server import Server, serving
from tests.engines.stream import Engine
from tests.engines.toy import Pace, Toy, save_tokenizer, toy_tokenizer
from tests.test_calibration import SHAPE, known

FAST = Pace(ttft_ms=2, prefill_ms=0, itl_ms=0.5, jitter=0)


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def toy_url() -> Iterator[str]:
    with serving(Server(Engine(), [Toy(toy_tokenizer(), pace=FAST)], DIALECTS["llama.cpp"])) as url:
        yield url


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer folder, an own cache, and a mock whose bias is known without AIPerf."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "drive_mock", lambda shapes, *_: [known() for _ in shapes])
    monkeypatch.setattr(
        calibration, "compare", lambda shape, *_: compare(SHAPE, *known(), load=0).model_copy(update={"shape": shape})
    )
    return save_tokenizer(tmp_path / "tokenizer")


def test_doctor_prints_the_table_of_effects_and_of_the_clients_bias(toy_url: str, tokenizer: Path) -> None:
    code, text = invoke(
        "doctor", "--endpoint", f"toy={toy_url}/v1", "--model", "toy", "--tokenizer", str(tokenizer),
        "--concurrency", "1,2",
    )  # fmt: skip
    assert code == 0, text
    assert "llama.cpp" in text and "ignore_eos" in text
    assert "What this client measures, against a mock" in text
    assert text.count("measurable here") == 4, "two loads, and what events of four change at the second"


def test_doctor_as_json(toy_url: str, tokenizer: Path) -> None:
    code, text = invoke(
        "doctor", "--endpoint", toy_url, "-m", "toy", "--tokenizer", str(tokenizer), "--concurrency", "1", "--json"
    )
    found = json.loads(text[text.index("{\n") :])
    assert code == 0
    assert found["endpoints"][0]["dialect"] == "llama.cpp"
    assert len(found["biases"]) == 1 and found["client"]["aiperf"] == "0.13.0"


def test_without_a_tokenizer_it_says_why_nothing_was_calibrated(toy_url: str) -> None:
    code, text = invoke("doctor", "--endpoint", f"toy={toy_url}", "--model", "toy")
    assert code == 0 and "not calibrated: name a folder with tokenizer.json" in text


def test_a_shape_needs_no_endpoint(tokenizer: Path) -> None:
    code, text = invoke("doctor", "--shape", "12,0.56,1", "--shape", "12,3.1,32,4", "--tokenizer", str(tokenizer))
    assert code == 0 and "c32" in text and "4 tokens an event" in text


def test_a_server_that_cuts_is_calibrated_at_the_first_concurrency_alone(
    toy_url: str, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(checkup, "candidate_shapes", lambda url, model, loads, **_: asked.append(loads) or ())
    monkeypatch.setattr(checkup, "examine", lambda *_, **__: Cutting())
    monkeypatch.setattr(checkup, "Checkup", lambda **found: found)
    checkup.check_up(checkup.Request({"x": toy_url}, "toy", None, tokenizer, None, (1, 8), (), fresh=False), silent)
    assert asked == [(1,)]


class Cutting:
    endpoint, url = "x", "http://127.0.0.1:9"

    def capability(self, _: str) -> Any:
        return Capability(name="two streams at once", support=Support.WRONG, detail="")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "Give --endpoint NAME=URL"),
        (["--endpoint", "a=http://127.0.0.1:9"], 2, "--model is missing"),
        (["--endpoint", "a=http://127.0.0.1:9", "-m", "m"], 5, "a: http://127.0.0.1:9 does not answer"),
        (["--endpoint", "127.0.0.1:9", "-m", "m"], 2, "no NAME=URL such as vllm=http"),
        (["--endpoint", "../x=http://h", "-m", "m"], 2, "the name '../x' must be"),
        (["--endpoint", "a=http://h", "--endpoint", "a=http://i", "-m", "m"], 2, "given twice"),
        (["--endpoint", "a=http://h", "-m", "m", "--concurrency", "1,x"], 2, "--concurrency: '1,x' is no list"),
        (["--endpoint", "a=http://h", "-m", "m", "--reference", "nowhere"], 2, "nowhere has no tokenizer.json"),
        (["--endpoint", "a=http://h", "-m", "m", "--api-key-env", "NO_SUCH_KEY_X"], 2, "NO_SUCH_KEY_X is not set"),
        (["--shape", "12,0.5,1"], 2, "--shape needs --tokenizer"),
        (["--shape", "fast"], 2, "--shape: 'fast' is no TTFT_MS"),
    ],
)
def test_mistakes_are_sentences(arguments: list[str], code: int, sentence: str) -> None:
    found, text = invoke("doctor", *arguments)
    assert found == code and sentence in text, text


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8", (8,)),
        ("1,2,4..256", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ("1..256x2", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ("1..100x3", (1, 3, 9, 27, 81)),
        ("8..32+8", (8, 16, 24, 32)),
        ("4, 2,4", (2, 4)),
    ],
)
def test_lists_of_concurrencies(text: str, values: tuple[int, ...]) -> None:
    assert concurrencies("--concurrency", text) == values


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5", "a", "4..2", "1..8x1", "1..8+0", "1..99999+1", "0..8", "1..9999999999x2", "²"]
)
def test_what_is_no_list_of_concurrencies(text: str) -> None:
    with pytest.raises(UsageError, match="--concurrency"):
        concurrencies("--concurrency", text)


@given(st.text(max_size=30))
def test_no_text_makes_the_readers_fall_over(text: str) -> None:
    for read in (
        lambda: concurrencies("--c", text),
        lambda: timing(text),
        lambda: named_urls([text]),
        lambda: extra_inputs([text]),
    ):
        with suppress(UsageError):
            read()


def test_extra_inputs_are_read_as_aiperf_reads_them() -> None:
    given = ["return_token_ids:true", "top_p:0.9", "user:a:b", '{"chat_template_kwargs": {"enable_thinking": false}}']
    assert extra_inputs(given) == {
        "return_token_ids": True, "top_p": 0.9, "user": "a:b", "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    for wrong in ("top_p", ":1", "[1]", "a b:1"):
        with pytest.raises(UsageError, match="is no KEY:VALUE"):
            extra_inputs([wrong])


def test_names_and_urls() -> None:
    assert named_urls(["a=http://h:1/v1?x=y", "http://127.0.0.1:8000"]) == {
        "a": "http://h:1/v1?x=y",
        "127.0.0.1-8000": "http://127.0.0.1:8000",
    }
