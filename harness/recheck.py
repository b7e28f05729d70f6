"""Re-derive a finished run's verdict from its raw files, with no engine running, and name what does not agree."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness import pipeline
from harness.cells import make_cells
from harness.errors import ExitCode, InvalidRun, UsageError
from harness.judge import judge
from harness.progress import Progress
from harness.run_store import MANIFEST, RunStore, read_json
from harness.verdict import Verdict


@dataclass(frozen=True)
class Recheck:
    """What a recheck found. `differs` holds files whose content does not follow from the files they came from."""

    run: Path
    altered: tuple[str, ...]
    differs: tuple[str, ...]
    verdict: Verdict

    @property
    def exit_code(self) -> int:
        """The verdict's own code when everything agrees, INVALID otherwise."""
        return int(ExitCode.INVALID if self.altered or self.differs else pipeline.exit_code(self.verdict))

    @property
    def sentence(self) -> str:
        """One line a name that does not agree, or the verdict again."""
        if not self.altered and not self.differs:
            return f"RECHECK AGREES: {self.verdict.line}"
        lines = [f"RECHECK DIFFERS: {self.run} is not what was judged."]
        lines += [f"  altered since it was written: {name}" for name in self.altered]
        lines += [f"  does not follow from the raw files: {name}" for name in self.differs]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The same as data."""
        return {
            "agrees": not self.altered and not self.differs,
            "altered": list(self.altered),
            "differs": list(self.differs),
            "status": self.verdict.status,
            "exit_code": self.exit_code,
            "run": str(self.run),
        }


def recheck_run(root: Path, progress: Progress) -> Recheck:
    """Check every hash, derive measurements again from AIPerf's raw exports, judge again, compare.

    Raises InvalidRun when the run never finished: without a manifest there is nothing to trust.
    """
    store = RunStore.open(root)
    if not (root / "verdict.json").is_file() and (root / "sweep.json").is_file():
        raise UsageError(f"{root} is a sweep: it has no verdict to derive again. Its files' hashes are in {MANIFEST}.")
    if not (root / MANIFEST).is_file():
        raise InvalidRun(
            f"{root} has no manifest: the run was never finished. Go on with it: gate --run-dir {root} --resume"
        )
    progress("checking hashes")
    altered = tuple(store.altered())
    recorded = Verdict.model_validate(read_json(root / "verdict.json"))
    try:
        differs = tuple(_measurements_that_differ(store, progress))
        derived = judge(pipeline.stored_plan(root), root)
    except InvalidRun as error:
        if altered:  # the alteration explains it, and it has been named
            return Recheck(root, altered, (str(error),), recorded)
        raise
    # A run is called after its folder; a copy under another name is the same evidence.
    named = derived.line.removesuffix(root.name) + recorded.line.rpartition("run=")[2]
    if derived.model_copy(update={"line": named}) != recorded:
        differs += ("verdict.json",)
    return Recheck(root, altered, differs, recorded)


def _measurements_that_differ(store: RunStore, progress: Progress) -> list[str]:
    plan = pipeline.stored_plan(store.root)
    cells = make_cells(plan)
    differs = []
    visits = sorted(path.parent for path in store.root.glob("pairs/*/*/visit.json"))
    for number, visit in enumerate(visits):
        progress(f"deriving {visit.relative_to(store.root)} again", number / len(visits))
        with tempfile.TemporaryDirectory() as folder:
            pipeline.measure(store, cells, visit, Path(folder))
            same_rows = pq.read_table(Path(folder) / "requests.parquet").equals(
                pq.read_table(visit / "requests.parquet")
            )
            same_numbers = read_json(Path(folder) / "measurements.json") == read_json(visit / "measurements.json")
        name = str(visit.relative_to(store.root))
        differs += [] if same_rows else [f"{name}/requests.parquet"]
        differs += [] if same_numbers else [f"{name}/measurements.json"]
    return differs
