"""Audits in the timed stream: how many each cell carries. What they ask and who judges them: `oracles.audit_plan`.

A gate adds at most `audit_share` of its load as audits. They come in twos (a pair of twins must not be torn apart by
a cell's end), counted over all cells and pairs, so that short cells add up to a share instead of each rounding to none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson

from harness.cells import Cell
from harness.plan import Plan
from harness.workload import Insert, InsertSource, seed_for
from oracles.audit_plan import FAMILIES, AuditRequest, plan_audit
from traffic_profiles.requests import RequestSpec

TWO = 2


def audit_source(plan: Plan, cells: Sequence[Cell], pair: int) -> InsertSource:
    """What audits add to each cell of one pair; nothing where `audit_share` affords none."""
    budgets = audits_in_pair(plan.audit_share, cells, pair)
    families = tuple(name for name in FAMILIES if name != "logprob-twins" or plan.audit_logprobs)

    def audits(cell: Cell, load: Sequence[RequestSpec]) -> list[Insert]:
        share = (budgets[cell.name] + 0.5) / len(load)  # the half keeps a product of floats from rounding down
        rows = [_row(spec) for spec in load]
        planned = plan_audit(seed_for(plan, pair, f"audit/{cell.name}"), rows, share, families=families)
        return [Insert("audit", _spec(request), request.after) for request in planned]

    return audits


def audits_in_pair(share: float, cells: Sequence[Cell], pair: int) -> dict[str, int]:
    """Audit requests of each cell in pair `pair` (from 1): even numbers, up to here at most `share` of the load."""
    asked = (pair - 1) * sum(cell.request_count for cell in cells)
    found = {}
    for cell in cells:
        before, asked = asked, asked + cell.request_count
        found[cell.name] = TWO * (int(share * asked / TWO) - int(share * before / TWO))
    return found


def _row(spec: RequestSpec) -> dict[str, Any]:
    return asdict(spec) | {"messages": orjson.dumps(list(spec.messages)).decode()}


def _spec(audit: AuditRequest) -> RequestSpec:
    fields = {name: value for name, value in vars(audit).items() if name not in ("after", "messages")}
    return RequestSpec(**fields, messages=tuple(orjson.loads(audit.messages)))
