"""Log-probabilities collected where the engine is and scored where the reference is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from oracles.logit_files import Text, collect, cut_to, fewest_ids, read_documents, read_routes
from oracles.logit_oracle import score_logits
from oracles.reference import OracleError
from oracles.result import OracleResult
from tests.tiny_model import tiny_reference
from tests.tiny_server import Server


def texts(count: int = 5, length: int = 60) -> list[Text]:
    rng = np.random.default_rng(2)
    return [Text(1, 10 + n, f"item-{n}", "en", rng.integers(3, 512, length).tolist()) for n in range(count)]


def scored(folder: Path, server: Any, top_k: int = 20) -> OracleResult:
    collect(server, "m", texts(), folder / "logits")
    return score_logits(folder / "logits", tiny_reference(), "candidate", folder / "out", top_k=top_k)


def test_an_honest_server_diverges_by_rounding_in_both_phases(tmp_path: Path) -> None:
    result = scored(tmp_path, Server())
    assert result.status == "scored"
    for phase in ("prefill", "decode"):
        assert result.metrics[f"kld_mean@{phase}"].value == pytest.approx(0, abs=1e-5)
        assert result.metrics[f"same_top@{phase}"].value == 1
    assert result.metrics["k3_cold"].value == pytest.approx(0, abs=1e-5)
    assert result.metrics["ids_compared"].value == 20
    rows = pq.read_table(tmp_path / "out" / "logits.parquet").to_pylist()
    assert [row["line"] for row in rows] == [10, 11, 12, 13, 14] * 2
    assert all(row["tokens"] == len(row["klds"]) == len(row["logq"]) for row in rows)
    assert {row["tokens"] for row in rows if row["phase"] == "prefill"} == {59}
    assert OracleResult.model_validate_json((tmp_path / "out" / "logits.json").read_text()) == result


def test_a_decode_path_that_is_off_is_seen_in_its_own_phase(tmp_path: Path) -> None:
    result = scored(tmp_path, Server(lambda logits, phase: logits * (1.3 if phase == "decode" else 1)))
    assert result.metrics["kld_mean@prefill"].value == pytest.approx(0, abs=1e-5)
    assert result.metrics["kld_mean@decode"].value > 0.01  # type: ignore[operator]
    assert result.metrics["k3_decode-hit"].value > 0.01  # type: ignore[operator]


def test_a_server_without_logprobs_is_a_reason_and_no_number(tmp_path: Path) -> None:
    result = scored(tmp_path, lambda path, body: {"choices": [{"text": "x"}]})
    assert result.status == "unscored" and not result.metrics
    assert "holds no prompt log-probabilities" in result.reason
    assert not (tmp_path / "out" / "logits.parquet").exists()


def test_one_route_is_enough(tmp_path: Path) -> None:
    def decode_only(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        bare = "prompt_logprobs" in body or body.get("echo")
        return {"choices": [{"text": "x"}]} if bare else Server()(path, body)

    result = scored(tmp_path, decode_only)
    assert "kld_mean@decode" in result.metrics and "kld_mean@prefill" not in result.metrics
    assert any("prefill: No prompt log-probabilities" in note for note in result.notes)


def test_merged_tokens_are_refused_text_by_text(tmp_path: Path) -> None:
    class Merging(Server):
        def __call__(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
            answer = dict(super().__call__(path, body))
            answer["usage"] = {"completion_tokens": 48 + (body["prompt"][0] % 2)}
            return answer

    odd = sum(text.ids[0] % 2 for text in texts())
    collect(Merging(), "m", texts(), tmp_path)
    decoded = [d for _, d in read_documents(tmp_path) if d.phase == "decode"]
    assert 0 < len(decoded) == len(texts()) - odd
    assert f"{odd} refused: 48 rows of log-probabilities came for 49" in read_routes(tmp_path)["routes"]["decode"]


def test_shifted_rows_are_refused_as_a_whole(tmp_path: Path) -> None:
    class Shifted(Server):
        def logprobs(self, ids: Any, phase: str) -> Any:
            table = super().logprobs(ids, phase)
            return table if phase == "decode" else table.roll(1, 0)

    result = scored(tmp_path, Shifted(lambda logits, phase: logits * 2))
    assert "kld_mean@prefill" not in result.metrics
    assert any("Refused" in note for note in result.notes)


def test_both_arms_are_cut_to_what_the_poorer_returned(tmp_path: Path) -> None:
    collect(Server(), "m", texts(), tmp_path / "rich", top_k=20)
    collect(Server(), "m", texts(), tmp_path / "poor", top_k=5)
    poorest = fewest_ids(read_documents(tmp_path / "poor"))
    assert poorest == 4  # the token itself is one of the five
    cut = cut_to(read_documents(tmp_path / "rich"), poorest)
    assert {len(row.others) for _, d in cut for row in d.rows} == {4}
    best = max(read_documents(tmp_path / "rich")[0][1].rows[0].others.values())
    assert max(cut[0][1].rows[0].others.values()) == best


def test_a_broken_file_is_one_sentence(tmp_path: Path) -> None:
    collect(Server(), "m", texts(2), tmp_path)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 cut short")
    with pytest.raises(OracleError, match=r"rows\.parquet cannot be read"):
        read_documents(tmp_path)
    (tmp_path / "routes.json").write_text(json.dumps([])[:1])
    with pytest.raises(OracleError, match=r"routes\.json cannot be read"):
        read_routes(tmp_path)
