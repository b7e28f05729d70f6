"""What was scored once is not scored again, and nothing partial or altered is ever read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from oracles import store as store_module
from oracles.reference import OracleError
from oracles.scoring import ScoreRequest, TokenScores, score
from oracles.store import ScoreStore, request_key, score_stored
from tests.tiny_model import tiny_reference

COLUMNS = ("logprobs", "ranks", "margins", "entropies", "lse", "top_ids", "top_logprobs")


def some(count: int = 5, seed: int = 0) -> list[ScoreRequest]:
    rng = np.random.default_rng(seed)
    return [ScoreRequest(rng.integers(3, 512, 5).tolist(), rng.integers(3, 512, 8 + i).tolist()) for i in range(count)]


def same(a: list[TokenScores], b: list[TokenScores]) -> None:
    for x, y in zip(a, b, strict=True):
        for name in COLUMNS:
            np.testing.assert_allclose(getattr(x, name), getattr(y, name), atol=1e-4, err_msg=name)
            assert getattr(x, name).dtype == getattr(y, name).dtype
            assert getattr(x, name).shape == getattr(y, name).shape


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def scored_again(*_: object, **__: object) -> list[TokenScores]:
        raise AssertionError("scored again")

    monkeypatch.setattr("oracles.reference.score", scored_again)


@pytest.mark.parametrize("top_k", [0, 4])
def test_a_store_gives_back_what_scoring_gave(tmp_path: Path, top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = some()
    expected = score(tiny_reference(), requests, top_k=top_k)
    same(expected, score_stored(tiny_reference(), requests, ScoreStore(tmp_path), top_k=top_k))
    forbid(monkeypatch)
    same(expected, score_stored(tiny_reference(), requests, ScoreStore(tmp_path), top_k=top_k))


def test_only_what_is_missing_is_scored_and_repeats_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, requests = ScoreStore(tmp_path), some()
    score_stored(tiny_reference(), requests[:3], store)
    asked: list[int] = []

    def counted(reference: object, part: list[ScoreRequest], **how: object) -> list[TokenScores]:
        asked.append(len(part))
        return score(tiny_reference(), part)

    monkeypatch.setattr("oracles.reference.score", counted)
    twice = [*requests, *requests]
    same(score(tiny_reference(), twice), score_stored(tiny_reference(), twice, store))
    assert asked == [2]


def test_progress_counts_what_was_there_before(tmp_path: Path) -> None:
    store, requests = ScoreStore(tmp_path), some()
    score_stored(tiny_reference(), requests[:3], store)
    seen: list[tuple[int, int]] = []
    score_stored(tiny_reference(), requests, store, progress=lambda *now: seen.append(now))
    total = sum(map(len, requests))
    assert seen[-1] == (total, total)
    assert seen[0][0] >= sum(map(len, requests[:3]))


def test_a_killed_run_goes_on_at_the_last_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SHARD_TOKENS", 20)
    requests, calls = some(), []

    def killed(reference: object, part: list[ScoreRequest], **how: object) -> list[TokenScores]:
        calls.append(len(part))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(tiny_reference(), part)

    monkeypatch.setattr("oracles.reference.score", killed)
    with pytest.raises(KeyboardInterrupt):
        score_stored(tiny_reference(), requests, ScoreStore(tmp_path))
    kept = ScoreStore(tmp_path)
    assert sum(request_key(tiny_reference(), r, 0) in kept for r in requests) == sum(calls[:2])
    monkeypatch.setattr("oracles.reference.score", score)
    same(score(tiny_reference(), requests), score_stored(tiny_reference(), requests, kept))


def test_a_half_written_index_line_is_dropped(tmp_path: Path) -> None:
    score_stored(tiny_reference(), some(2), ScoreStore(tmp_path))
    with (tmp_path / "index.jsonl").open("ab") as stream:
        stream.write(b'{"sha256": "ab')
    store = ScoreStore(tmp_path)
    same(score(tiny_reference(), some(3)), score_stored(tiny_reference(), some(3), store))
    assert len((tmp_path / "index.jsonl").read_bytes().splitlines()) == 2
    ScoreStore(tmp_path)


def shard(root: Path) -> Path:
    return next((root / "shards").glob("*.parquet"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [(cut, "it is partial"), (flip, "was altered"), (Path.unlink, "is missing")],
)
def test_a_partial_or_altered_shard_is_refused_by_name(tmp_path: Path, harm: object, sentence: str) -> None:
    score_stored(tiny_reference(), some(), ScoreStore(tmp_path))
    path = shard(tmp_path)
    harm(path)  # type: ignore[operator]
    with pytest.raises(OracleError, match=sentence) as error:
        score_stored(tiny_reference(), some(), ScoreStore(tmp_path))
    assert path.name in str(error.value)


def test_a_short_write_is_noticed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that loses the end of a file after the hash was taken; the llama.cpp perplexity writer would exit 0."""
    replace = Path.replace

    def lossy(self: Path, target: Path) -> Path:
        moved = replace(self, target)
        if target.suffix == ".parquet":
            cut(target)
        return moved

    monkeypatch.setattr(Path, "replace", lossy)
    with pytest.raises(OracleError, match="it is partial"):
        score_stored(tiny_reference(), some(), ScoreStore(tmp_path))
    monkeypatch.undo()
    assert not any(request_key(tiny_reference(), r, 0) in ScoreStore(tmp_path) for r in some())


def test_an_index_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "index.jsonl").write_text('{"rows": 1}\n')
    with pytest.raises(OracleError, match=r"index\.jsonl, line 1"):
        ScoreStore(tmp_path)


def test_the_key_knows_everything_a_score_depends_on() -> None:
    plain, other = ScoreRequest([5, 6], [7, 8]), tiny_reference("bfloat16")
    keys = {
        request_key(tiny_reference(), plain, 0),
        request_key(tiny_reference(), plain, 1),
        request_key(other, plain, 0),
        request_key(tiny_reference(), ScoreRequest([5, 6], [7, 8], no_end=True), 0),
        request_key(tiny_reference(), ScoreRequest([5, 6], [7, 8], targets=[9, 9]), 0),
        request_key(tiny_reference(), ScoreRequest([5], [6, 7, 8]), 0),
        request_key(tiny_reference(), ScoreRequest([5, 6, 7], [8]), 0),
    }
    assert len(keys) == 7
    assert request_key(tiny_reference(), ScoreRequest((5, 6), np.array([7, 8])), 0) in keys  # type: ignore[arg-type]


def test_hidden_mass_is_stored(tmp_path: Path) -> None:
    score_stored(tiny_reference(), some(1), ScoreStore(tmp_path), top_k=4)
    row = pq.read_table(shard(tmp_path)).to_pylist()[0]
    kept = np.exp(np.array(row["top_logprobs"]).reshape(len(row["lse"]), 4)).sum(1)
    np.testing.assert_allclose(row["tail_mass"], 1 - kept, atol=1e-5)
