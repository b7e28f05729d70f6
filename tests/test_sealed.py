from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.sealed import fingerprint, read_secret, sealed_seed

SECRET = "0123456789abcdef0123"


def test_a_secret_comes_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", f" {SECRET}\n")
    file = tmp_path / "seed"
    file.write_text(f"{SECRET}\n")
    assert read_secret("env:SEED") == read_secret(f"file:{file}") == SECRET.encode()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("env:NOT_SET_HERE", "NOT_SET_HERE is not set"),
        ("file:/no/such/file", "no secret seed file"),
        ("SEED", "env:NAME"),
        ("env:", "env:NAME"),
        ("env:SHORT", "has 5 bytes and needs 16"),
    ],
)
def test_a_bad_secret_gets_one_sentence(source: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT", "short")
    with pytest.raises(UsageError, match=sentence) as raised:
        read_secret(source)
    assert "short" not in str(raised.value).replace("shorter", "")


def test_each_attempt_and_plan_has_its_own_prompts_and_nothing_gives_the_secret_away() -> None:
    secret = SECRET.encode()
    seeds = {sealed_seed(secret, plan=plan, attempt=attempt) for plan in ("a", "b") for attempt in range(1, 50)}
    assert len(seeds) == 98
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sealed_seed(secret, plan="a", attempt=1) == sealed_seed(secret, plan="a", attempt=1)
    assert SECRET not in fingerprint(secret)
    assert fingerprint(secret) != fingerprint(b"x" * 20)
