"""Read a finished (or broken) run directory from disk. The only module here that opens a run's files.

Tolerant of what is missing, never of what is wrong: a file that cannot be read becomes a sentence in `Run.problems`,
a number that is not finite becomes None, a status nobody knows becomes INVALID, and a PASS that the checks do not bear
out is not shown as one. All text is cleaned here (`clean_text`), so nothing downstream can forget to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from reports.clean_text import clean, clean_tree
from reports.values import as_dict, as_list, as_number
from reports.verdict_data import Check, Verdict, parse_verdict, unreadable

MAX_FILE_BYTES = 64 * 2**20
LATENCIES = ("ttft", "tpot", "request_latency")
# Requests below which a percentile is the largest value under another name, and is not shown.
NEEDED = {"p90": 10, "p95": 20, "p99": 100}


@dataclass(frozen=True)
class Cell:
    """A profile under one load: `name` is `profile/c8` or `profile/r2.5`."""

    name: str
    profile: str
    load: str

    @property
    def amount(self) -> float:
        """Concurrency, or requests per second."""
        return as_number(self.load[1:]) or 0.0

    @property
    def closed_loop(self) -> bool:
        """Whether the load is a number of requests in flight."""
        return self.load.startswith("c")


@dataclass(frozen=True)
class Visit:
    """One arm of one pair: measurements.json beside visit.json."""

    pair: int
    arm: str
    slot: int
    folder: Path
    cells: dict[str, dict[str, Any]]
    record: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """Everything a report says about one run. `verdict` is None for a sweep.

    `slos` has the profile's limits by cell: `ttft_ms` and `tpot_ms`, as pair.json states them.
    """

    root: Path
    name: str
    verdict: Verdict | None
    plan: dict[str, Any]
    environment: dict[str, Any]
    engines: dict[str, dict[str, Any]]
    visits: tuple[Visit, ...]
    oracles: dict[str, dict[str, dict[str, Any]]]
    slos: dict[str, dict[str, float]]
    calibration: dict[str, Any]
    problems: tuple[str, ...]

    @property
    def held_out(self) -> bool:
        """Whether the prompts were held out: then no word of a prompt or an answer is shown."""
        return bool(self.plan.get("prompt_secret"))

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell seen, in the plan's order of profiles, then by load."""
        names = {name for visit in self.visits for name in visit.cells}
        names |= {check.cell for check in self.checks if check.cell}
        planned = [str(use.get("name")) for use in as_list(self.plan.get("profiles")) if isinstance(use, dict)]
        order = {name: place for place, name in enumerate(planned)}
        cells = [Cell(name, *_split(name)) for name in names]
        return tuple(sorted(cells, key=lambda c: (order.get(c.profile, len(order)), c.profile, c.load[:1], c.amount)))

    @property
    def checks(self) -> tuple[Check, ...]:
        """All checks, none for a sweep."""
        return self.verdict.checks if self.verdict else ()

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """Arms that were measured: baseline first, candidate second, then by name."""
        rank = {"baseline": 0, "candidate": 1}
        return tuple(sorted({v.arm for v in self.visits}, key=lambda arm: (rank.get(arm, 2), arm)))

    @cached_property
    def pairs(self) -> int:
        """How often every engine was visited."""
        return len({visit.pair for visit in self.visits})

    @property
    def status(self) -> str:
        """The verdict's status; without one UNFINISHED for a gate (its plan has a policy), SWEEP otherwise."""
        return self.verdict.status if self.verdict else "UNFINISHED" if "policy" in self.plan else "SWEEP"

    def of_family(self, family: str) -> tuple[Check, ...]:
        """Checks of one half of the question: speed, accuracy, honesty, validity."""
        return tuple(check for check in self.checks if check.family == family)

    def requests(self, arm: str, columns: list[str]) -> Iterator[tuple[int, pa.Table]]:
        """(pair, rows of requests.parquet) of an arm; a table that cannot be read is left out."""
        for visit in self.visits:
            if visit.arm == arm and (table := read_table(visit.folder / "requests.parquet", columns)) is not None:
                yield visit.pair, table

    def scored(self, arm: str, columns: list[str]) -> pa.Table | None:
        """Rows of oracles/<arm>/tokens.parquet."""
        return read_table(self.root / "oracles" / arm / "tokens.parquet", columns)


def read_run(root: Path) -> Run:
    """Read a run directory. Raises FileNotFoundError when `root` is no folder or holds nothing that was measured."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is no run directory: it does not exist.")
    problems: list[str] = []
    verdict = _verdict(root / "verdict.json", problems)
    visits = tuple(_visits(root, problems))
    if verdict is None and not visits:
        if not problems:
            raise FileNotFoundError(
                f"{root} is no run directory: it holds neither verdict.json nor pairs/*/*/measurements.json."
            )
        verdict = unreadable("This run left nothing that could be read.")
    run = Run(
        root=root,
        name=clean(root.resolve().name, 120),
        verdict=verdict,
        plan=_read(root / "plan.yaml", problems, yaml.safe_load),
        environment=_read(root / "environment.json", problems),
        engines={path.stem: _read(path, problems) for path in sorted(root.glob("engines/*.json"))},
        visits=visits,
        oracles=_oracles(root, problems),
        slos=_slos(root, problems),
        calibration=_read(root / "calibration.json", problems),
        problems=tuple(problems),
    )
    return replace(run, oracles=_withheld(run.oracles)) if run.held_out else run


def measured(cell: dict[str, Any], metric: str, gpus: int = 0) -> float | None:
    """A metric such as `ttft.p50` or `output_throughput` of one cell of measurements.json, in its own unit."""
    name, _, stat = metric.partition(".")
    if name == "throughput_per_gpu":
        whole = as_number(cell.get("output_throughput"))
        return whole / gpus if whole is not None and gpus else None
    if name in LATENCIES:
        asked = as_number(cell.get("asked"))
        if asked is not None and asked < NEEDED.get(stat, 0):
            return None
        return as_number(as_dict(cell.get(f"{name}_ms")).get(stat or "p50"))
    return as_number(cell.get(name))


def read_table(path: Path, columns: list[str]) -> pa.Table | None:
    """The named columns of a Parquet file (those it has); None when it is missing or broken."""
    try:
        file = pq.ParquetFile(path)
        return file.read([name for name in columns if name in file.schema_arrow.names])
    except (OSError, pa.ArrowException):
        return None


def _read(path: Path, problems: list[str], parse: Callable[[bytes], Any] = orjson.loads) -> dict[str, Any]:
    """A JSON or YAML object with clean text; {} and a sentence in `problems` when it cannot be read."""
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES >> 20} MiB")
        value = clean_tree(parse(path.read_bytes()))
        if not isinstance(value, dict):
            raise ValueError("not an object of keys and values")
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        problems.append(clean(f"{'/'.join(path.parts[-3:])} cannot be read: {' '.join(str(error).split())}.", 300))
        return {}
    return value


def _verdict(path: Path, problems: list[str]) -> Verdict | None:
    if not path.exists():
        return None
    known = len(problems)
    raw = _read(path, problems)
    if len(problems) > known:
        return unreadable("verdict.json cannot be read, so nothing is decided.")
    verdict, problem = parse_verdict(raw)
    problems += [problem] if problem else []
    return verdict


def _visits(root: Path, problems: list[str]) -> Iterator[Visit]:
    for path in sorted(root.glob("pairs/*/*/measurements.json")):
        raw = _read(path, problems)
        cells = {name: cell for name, cell in as_dict(raw.get("cells")).items() if isinstance(cell, dict)}
        if not cells:
            continue
        pair = as_number(raw.get("pair")) or as_number(path.parts[-3]) or 0
        yield Visit(
            pair=int(pair),
            arm=clean(path.parent.name, 60),
            slot=int(as_number(raw.get("slot")) or 0),
            folder=path.parent,
            cells=cells,
            record=_read(path.parent / "visit.json", problems),
        )


def _oracles(root: Path, problems: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted(root.glob("oracles/*/*.json")):
        if raw := _read(path, problems):
            found.setdefault(clean(path.parent.name, 60), {})[clean(path.stem, 60)] = raw
    return found


def _withheld(value: Any) -> Any:
    """Oracle results without their sentences, which may quote an answer."""
    if isinstance(value, dict):
        told = {key: _withheld(one) for key, one in value.items()}
        return told | {key: type(told[key])() for key in ("sentence", "reason", "notes") if key in told}
    return [_withheld(item) for item in value] if isinstance(value, list) else value


def _slos(root: Path, problems: list[str]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for path in sorted(root.glob("pairs/*/pair.json"))[:1]:  # every pair drives the same cells
        for entry in map(as_dict, as_list(_read(path, problems).get("cells"))):
            limits = {key: as_number(value) for key, value in as_dict(entry.get("slo")).items()}
            found[str(entry.get("cell"))] = {key: value for key, value in limits.items() if value}
    return found


def _split(name: str) -> tuple[str, str]:
    profile, slash, load = name.rpartition("/")
    return (profile, load) if slash else (name, "")
