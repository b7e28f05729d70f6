"""A served reference scores as a local one does, as far as a server tells."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.endpoint_reference import EndpointReference, http_ask, open_endpoint
from oracles.reference import OracleError
from oracles.scoring import ScoreRequest, score
from tests.tiny_model import tiny_folder, tiny_reference
from tests.tiny_server import Server


def opened(server: Any = None) -> EndpointReference:
    return open_endpoint(server or Server(), "m", tiny_folder())


def some() -> list[ScoreRequest]:
    rng = np.random.default_rng(5)
    return [ScoreRequest(rng.integers(3, 512, 6).tolist(), rng.integers(3, 512, n).tolist()) for n in (12, 3, 20)]


def test_it_scores_as_the_local_reference_does() -> None:
    expected = score(tiny_reference(), some(), top_k=5)
    for got, wanted in zip(opened().score(some(), top_k=5), expected, strict=True):
        for name in ("logprobs", "margins", "top_logprobs"):
            np.testing.assert_allclose(getattr(got, name), getattr(wanted, name), atol=1e-4, err_msg=name)
        np.testing.assert_array_equal(got.top_ids, wanted.top_ids)
        assert (got.ranks <= wanted.ranks).all()  # outside the returned ids a rank is a lower bound
        assert (got.entropies <= wanted.entropies + 1e-4).all()
        assert np.isnan(got.lse).all()


def test_a_rank_that_the_server_says_is_taken() -> None:
    class Ranked(Server):
        def __call__(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
            answer = super().__call__(path, body)
            for row in (answer.get("choices") or [{}])[0].get("prompt_logprobs") or []:
                for value in (row or {}).values():
                    value["rank"] = 77
            return answer

    assert set(opened(Ranked()).score(some())[0].ranks.tolist()) == {76}


def test_forbidden_end_tokens_are_taken_out_as_far_as_they_are_returned() -> None:
    request = some()[0]
    barred = ScoreRequest(request.prompt, request.output, no_end=True)
    got = opened().score([barred], top_k=20)[0]
    wanted = score(tiny_reference(), [barred], top_k=20)[0]
    np.testing.assert_allclose(got.logprobs, wanted.logprobs, atol=0.02)  # an end token outside the top 20 stays in
    assert not (got.top_ids == 2).any()


def test_targets_must_be_among_what_came_back() -> None:
    request = some()[0]
    best = score(tiny_reference(), [request], top_k=2)[0].top_ids[:, 1].tolist()
    got = opened().score([ScoreRequest(request.prompt, request.output, targets=best)])[0]
    assert (got.ranks == 1).all()
    worst = [int(np.argmin(x)) for x in np.zeros((len(best), 3))]
    with pytest.raises(ValueError, match="not among those"):
        opened().score([ScoreRequest(request.prompt, request.output, targets=worst)])


def test_what_it_is_and_where_its_limits_are() -> None:
    reference = opened()
    assert (reference.vocab_size, reference.context_length, reference.end_token_ids) == (512, 256, {2})
    assert reference.prompt_ids("Once upon") == tiny_reference().prompt_ids("Once upon")
    assert opened().revision == reference.revision


def test_one_at_a_time_and_progress() -> None:
    server = Server()
    seen: list[tuple[int, int]] = []
    opened(server).score(some(), batch_tokens=1, progress=lambda *now: seen.append(now))
    assert [len(body["prompt"]) for body in server.asked[1:]] == [len(r) for r in some()]
    assert seen[-1] == (sum(map(len, some())),) * 2


def test_a_wrong_name_lists_what_is_served() -> None:
    with pytest.raises(OracleError, match="does not serve other; it serves m"):
        open_endpoint(Server(), "other", tiny_folder())


def test_a_server_without_prompt_logprobs_is_found_at_once() -> None:
    def bare(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return Server()(path, body) if path == "/v1/models" else {"choices": [{"text": "x"}]}

    with pytest.raises(OracleError, match="No prompt log-probabilities"):
        open_endpoint(bare, "m", tiny_folder())


def test_no_tokenizer_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OracleError, match="holds no tokenizer"):
        open_endpoint(Server(), "m", tmp_path)


class Http(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        key = (self.headers["Authorization"] or "").encode()
        good = b'{"method": "%s", "key": "%s"}' % (self.command.encode(), key)
        pages = {"/good": (200, good), "/list": (200, b"[1]"), "/garbage": (200, b"<html>")}
        said = pages.get(self.path, (404, b"no such path\n" * 50))
        self.rfile.read(length)
        self.send_response(said[0])
        self.send_header("Content-Length", str(len(said[1])))
        self.end_headers()
        self.wfile.write(said[1])

    do_GET = do_POST = answer  # noqa: N815


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Http)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_http_asks_with_a_key(url: str) -> None:
    ask = http_ask(url + "/", api_key="secret")
    assert ask("/good", {}) == {"method": "GET", "key": "Bearer secret"}
    assert ask("/good", {"a": 1})["method"] == "POST"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [("/none", "HTTP 404: no such path"), ("/list", "something else"), ("/garbage", "gave no answer")],
)
def test_http_faults_are_one_sentence(url: str, path: str, sentence: str) -> None:
    with pytest.raises(OracleError, match=sentence) as error:
        http_ask(url, api_key="secret")(path, {"a": 1})
    assert "secret" not in str(error.value)
    assert len(str(error.value)) < 400


def test_nobody_there() -> None:
    with pytest.raises(OracleError, match="gave no answer"):
        http_ask("http://127.0.0.1:9", timeout_s=2)("/v1/models", {})
