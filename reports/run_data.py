"""Read a finished (or broken) run directory from disk. The only module here that opens a run's files.

Tolerant of what is missing, never of what is wrong: a file that cannot be read becomes a sentence in `Run.problems`,
a number that is not finite becomes None, a status nobody knows becomes INVALID, and a PASS that the checks do not bear
out is not shown as one. All text is cleaned here (`clean_text`), so nothing downstream can forget to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from reports.clean_text import clean, clean_tree

MAX_FILE_BYTES = 64 * 2**20
STATUSES = ("PASS", "FAIL", "INCONCLUSIVE", "INVALID")
LATENCIES = ("ttft", "tpot", "request_latency")


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
class Check:
    """One judged criterion, as verdict.json has it (harness/verdict.py)."""

    check: str
    family: str
    status: str
    criterion: str
    metric: str
    reason: str
    cell: str | None = None
    unit: str = ""
    value_unit: str = ""
    observed: float | None = None
    required: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    confidence: float | None = None
    distance: float | None = None
    noise: float | None = None
    baseline: float | None = None
    candidate: float | None = None
    n: int = 0
    evidence: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True)
class Verdict:
    """verdict.json."""

    status: str
    mode: str
    line: str
    sentence: str
    next_step: str
    passed: int
    judged: int
    checks: tuple[Check, ...]
    failed_first: tuple[str, ...] = ()
    power: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    hashes: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


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
    """Everything a report says about one run. `verdict` is None for a sweep."""

    root: Path
    name: str
    verdict: Verdict | None
    plan: dict[str, Any]
    environment: dict[str, Any]
    engines: dict[str, dict[str, Any]]
    visits: tuple[Visit, ...]
    oracles: dict[str, dict[str, dict[str, Any]]]
    problems: tuple[str, ...]

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
        raise FileNotFoundError(f"There is no run directory {root}.")
    problems: list[str] = []
    verdict = _verdict(root / "verdict.json", problems)
    visits = tuple(_visits(root, problems))
    if verdict is None and not visits:
        if not problems:
            raise FileNotFoundError(f"{root} holds neither verdict.json nor pairs/*/*/measurements.json: no run.")
        verdict = _unreadable("This run left nothing that could be read.")
    return Run(
        root=root,
        name=clean(root.resolve().name, 120),
        verdict=verdict,
        plan=_read(root / "plan.yaml", problems, yaml.safe_load),
        environment=_read(root / "environment.json", problems),
        engines={path.stem: _read(path, problems) for path in sorted(root.glob("engines/*.json"))},
        visits=visits,
        oracles=_oracles(root, problems),
        problems=tuple(problems),
    )


def measured(cell: dict[str, Any], metric: str, gpus: int = 0) -> float | None:
    """A metric such as `ttft.p50` or `output_throughput` of one cell of measurements.json, in its own unit."""
    name, _, stat = metric.partition(".")
    if name == "throughput_per_gpu":
        whole = as_number(cell.get("output_throughput"))
        return whole / gpus if whole is not None and gpus else None
    if name in LATENCIES:
        return as_number(as_dict(cell.get(f"{name}_ms")).get(stat or "p50"))
    return as_number(cell.get(name))


def read_table(path: Path, columns: list[str]) -> pa.Table | None:
    """The named columns of a Parquet file (those it has); None when it is missing or broken."""
    try:
        file = pq.ParquetFile(path)
        return file.read([name for name in columns if name in file.schema_arrow.names])
    except (OSError, pa.ArrowException):
        return None


def as_number(value: Any) -> float | None:
    """A finite number, or None: never zero for missing."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def as_dict(value: Any) -> dict[str, Any]:
    """`value` when it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """`value` when it is a list, else an empty one."""
    return value if isinstance(value, list) else []


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


def _unreadable(sentence: str) -> Verdict:
    return Verdict("INVALID", "full", "VERDICT INVALID", sentence, "Look at the problems listed below.", 0, 0, ())


def _verdict(path: Path, problems: list[str]) -> Verdict | None:
    if not path.exists():
        return None
    known = len(problems)
    raw = _read(path, problems)
    if len(problems) > known:
        return _unreadable("verdict.json cannot be read, so nothing is decided.")
    if raw.get("schema_version") != 1:
        problems.append(f"verdict.json has schema version {raw.get('schema_version')}; this report reads version 1.")
        return _unreadable("verdict.json is of a version that this report does not read, so nothing is decided.")
    items = as_list(raw.get("checks"))
    checks = tuple(_check(item) for item in items if isinstance(item, dict))
    status, sentence = _status(raw), _text(raw, "sentence")
    if status == "PASS" and (not checks or len(checks) < len(items) or any(c.status != "PASS" for c in checks)):
        problems.append("verdict.json says PASS, but not every check in it passed.")
        status, sentence = "INVALID", "verdict.json contradicts itself: it says PASS, but not every check passed."
    return Verdict(
        status=status,
        mode="full" if raw.get("mode") == "full" else "quick",
        line=_text(raw, "line"),
        sentence=sentence,
        next_step=_text(raw, "next_step"),
        passed=int(as_number(raw.get("passed")) or 0),
        judged=int(as_number(raw.get("judged")) or len(checks)),
        checks=checks,
        failed_first=tuple(str(name) for name in as_list(raw.get("failed_first"))),
        power=as_dict(raw.get("power")),
        cost=as_dict(raw.get("cost")),
        hashes=as_dict(raw.get("hashes")),
        notes=tuple(str(note) for note in as_list(raw.get("notes"))),
    )


def _check(raw: dict[str, Any]) -> Check:
    texts = ("check", "family", "criterion", "metric", "reason", "unit", "value_unit", "hint")
    numbers = ("observed", "required", "ci_low", "ci_high", "confidence", "distance", "noise", "baseline", "candidate")
    fields: dict[str, Any] = {key: _text(raw, key) for key in texts} | {key: as_number(raw.get(key)) for key in numbers}
    return Check(
        status=_status(raw),
        cell=_text(raw, "cell") or None,
        n=int(as_number(raw.get("n")) or 0),
        evidence=tuple(str(path) for path in as_list(raw.get("evidence"))),
        **fields,
    )


def _status(raw: dict[str, Any]) -> str:
    status = str(raw.get("status"))
    return status if status in STATUSES else "INVALID"


def _text(raw: dict[str, Any], key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""


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


def _split(name: str) -> tuple[str, str]:
    profile, slash, load = name.rpartition("/")
    return (profile, load) if slash else (name, "")
