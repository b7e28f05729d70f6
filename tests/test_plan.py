"""A plan is read strictly: every mistake is one sentence with file, key, what is allowed, and exit code 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.errors import ExitCode, UsageError
from harness.plan import load_plan, make_plan
from harness.traffic_plan import dump_plan


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def _data(**changes: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "reference": {"path": "models/tiny"},
        "endpoints": {"baseline": {"url": "http://127.0.0.1:1"}, "candidate": {"url": "http://127.0.0.1:2/v1/"}},
        "profiles": ["smoke"],
    } | changes


def _load(tmp_path: Path, data: Any) -> Any:
    path = tmp_path / "plan.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return load_plan(path)


def test_everything_left_out_has_a_default_that_is_written_down(tmp_path: Path, model: Path) -> None:
    plan = _load(tmp_path, _data())
    assert plan.pairs == (6, 12) and plan.mode == "full" and plan.policy == "beat-by-20"
    assert plan.tokenizer_path == model.resolve(), "relative paths start at the plan's own folder"
    assert plan.endpoints.candidate.all_urls == ("http://127.0.0.1:2",)
    written = yaml.safe_load(dump_plan(plan))
    assert make_plan(written, source="again", folder=Path("/")) == plan
    assert written["seed"] == 7 and written["connection_reuse"] == "never"


def test_fewer_than_five_pairs_are_quick(tmp_path: Path, model: Path) -> None:
    assert _load(tmp_path, _data(pairs=[2])).mode == "quick"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"polcy": "x"}, r"plan\.yaml: unknown key polcy; did you mean policy\? \(allowed: .*seed"),
        (
            {"endpoints": {"baseline": {"url": "http://a", "lanch": "x"}, "candidate": {"url": "http://b"}}},
            r"unknown key endpoints\.baseline\.lanch; did you mean launch\?",
        ),
        ({"endpoints": {"baseline": {"url": "http://a"}}}, r"the key endpoints\.candidate is missing"),
        (
            {"endpoints": {"baseline": {}, "candidate": {"url": "http://b"}}},
            r"endpoints\.baseline: give either url or urls",
        ),
        ({"endpoints": {"baseline": {"url": "ftp://a"}, "candidate": {"url": "http://b"}}}, r"no http\(s\) URL"),
        ({"pairs": [12, 6]}, r"pairs: looks must grow"),
        ({"pairs": [1]}, r"pairs\.0: .*greater than or equal to 2"),
        ({"profiles": []}, r"profiles: .*at least 1"),
        ({"seed": -1}, r"seed: "),
        ({"reference": {"path": "models/none"}}, r"models/none has no config\.json"),
        ({"reference": None}, r"tokenizer: name a folder with tokenizer\.json"),
        ({"tokenizer": "models"}, r"has no tokenizer\.json"),
        ({"schema_version": 2}, r"schema_version: "),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, model: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        _load(tmp_path, _data(**changes))
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_key_that_is_not_in_the_environment(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    endpoints = {"baseline": {"url": "http://a", "api_key_env": "ENGINE_KEY"}, "candidate": {"url": "http://b"}}
    with pytest.raises(UsageError, match=r"endpoints\.baseline\.api_key_env: the environment variable ENGINE_KEY"):
        _load(tmp_path, _data(endpoints=endpoints))


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").touch()
    with pytest.raises(UsageError, match=r"no plan file .*plna\.yaml; did you mean .*plan\.yaml\?"):
        load_plan(tmp_path / "plna.yaml")


@pytest.mark.parametrize("text", ["a: [", "- 1", "", "\x00"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"plan\.yaml"):
        _load(tmp_path, text)
