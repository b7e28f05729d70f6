"""The honesty matrix: every contract that was tested on the timed responses, both arms, with the check's power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reports import wording
from reports.run_data import Run
from reports.table import Column, Item, Table, TableRow, num, share, text
from reports.values import as_dict, as_list, as_number

_COLUMNS = (
    Column("Contract"),
    Column("Candidate", "state"),
    Column("Baseline", "state"),
    Column("Broke it", "number", "broke"),
    Column("Looked at", "number", "n"),
    Column("Finds from", "number", "detectable_rate"),
    Column("What was seen", "reason"),
)
_FOUND = {"broken": "FAIL", "unscored": "NOT SCORED", "kept": "PASS"}
_ABSENT = "NOT LOOKED AT"
_RANK = {"FAIL": 0, "INVALID": 1, "INCONCLUSIVE": 2, "PASS": 3}  # what was not tested stands last


@dataclass(frozen=True)
class Contract:
    """One contract; `broke` and `looked_at` count the candidate's requests, `finds` is the check's power."""

    oracle: str
    name: str
    candidate: str
    baseline: str
    broke: float | None
    looked_at: float | None
    finds: float | None
    sentence: str

    @property
    def power(self) -> str:
        """The smallest share of misbehaving requests that the check finds."""
        return wording.percent(self.finds)


def contracts(run: Run) -> tuple[Contract, ...]:
    """Every contract, broken ones first. Honesty checks that no oracle wrote (load served) follow the oracles'."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for arm, results in run.oracles.items():
        for oracle, result in results.items():
            for finding in map(as_dict, as_list(result.get("findings"))):
                found.setdefault((oracle, str(finding.get("name"))), {})[arm] = finding
    made = [_contract(oracle, name, arms) for (oracle, name), arms in found.items()]
    named = {f"{oracle}.{name}" for oracle, name in found}
    made += [
        Contract("load", check.check, check.status, "", None, check.n, None, check.reason)
        for check in run.of_family("honesty")
        if check.check not in named
    ]
    return tuple(sorted(made, key=lambda one: _RANK.get(one.candidate, 9)))


def _contract(oracle: str, name: str, arms: dict[str, dict[str, Any]]) -> Contract:
    told = arms.get("candidate") or arms.get("both") or {}
    states = [_FOUND.get(str(one.get("status")), _ABSENT) for one in (told, arms.get("baseline", {}))]
    if states[0] in ("PASS", "FAIL") and states[1] == "NOT SCORED":
        states[1] = _ABSENT  # the candidate was compared with it
    broke, n, rate = (as_number(told.get(key)) for key in ("count", "n", "detectable_rate"))
    sentence = str(told.get("sentence") or "")
    return Contract(oracle, name.replace("-", " "), states[0], states[1], broke, n, rate, sentence)


def contracts_table(found: tuple[Contract, ...]) -> Table:
    """The matrix with its counts and sentences, which are the candidate's."""
    rows = []
    for one in found:
        name = one.name if one.oracle == "load" else f"{one.oracle}: {one.name}"
        looked = Item(f"{one.looked_at:,.0f}", one.looked_at) if one.looked_at is not None else num(None)
        counts = (num(one.broke), looked, share(one.finds, 2))
        rows.append(
            TableRow((text(name), text(one.candidate), text(one.baseline), *counts, text(one.sentence)), one.candidate)
        )
    return Table("contracts", "Contracts tested on the timed responses", _COLUMNS, tuple(rows))
