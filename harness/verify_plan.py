"""The plan of `enginegate verify`: endpoints by name and the reference they are judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from harness.arguments import extra_inputs
from harness.errors import UsageError
from harness.plan import Reference
from harness.sweep_plan import named_endpoints
from harness.traffic_plan import (
    NamedPlan,
    absolute,
    anchored,
    check_endpoints,
    check_model_folder,
    named_parts,
    validate,
)

PROFILE, REQUESTS, CONCURRENCY = "chat-steady", 48, 4


class VerifyPlan(NamedPlan):
    """Accuracy and honesty of endpoints; the first is what the others are set against."""

    kind: Literal["verify"] = "verify"
    reference: Reference
    tier: Literal["smoke", "gate", "nightly"] = "smoke"
    floor: Path | None = Field(None, description="folder that `enginegate floor` wrote; default: measured in the run")
    floor_tokens: int = Field(2048, ge=0, description="tokens on which the reference's own noise floor is measured")
    logit_documents: int = Field(32, ge=0, description="texts whose log-probabilities the endpoints are asked for")

    @property
    def most_pairs(self) -> int:
        """One visit to each endpoint."""
        return 1

    @property
    def tokenizer_path(self) -> Path | None:
        """Folder with tokenizer.json, or None."""
        return self.tokenizer or self.reference.path


def make_verify(data: dict[str, Any], *, source: str, folder: Path) -> VerifyPlan:
    """Validate a verification's data; `source` names it in errors, `folder` anchors relative paths."""
    parts = named_parts(data) | {"reference": Reference}
    plan = anchored(validate(VerifyPlan, data, source, parts), folder)
    changes: dict[str, Any] = {}
    if plan.reference.path:
        changes["reference"] = plan.reference.model_copy(update={"path": absolute(folder, plan.reference.path)})
    if plan.floor:
        changes["floor"] = absolute(folder, plan.floor)
    return plan.model_copy(update=changes)


def check_verify(plan: VerifyPlan) -> VerifyPlan:
    """Refuse a plan whose local files or environment variables are not there."""
    if plan.reference.path:
        check_model_folder(plan.reference.path, "--reference")
    check_endpoints(plan)
    return plan


def verify_data(flags: dict[str, Any]) -> dict[str, Any]:
    """A verification's keys from the command line's flags; only those that were given."""
    data: dict[str, Any] = {key: flags[key] for key in ("model", "seed", "logit_documents") if flags[key] is not None}
    data |= {key: str(flags[key]) for key in ("tokenizer", "floor") if flags[key]}
    data["endpoints"] = named_endpoints(flags)
    if bool(flags["reference"]) == bool(flags["reference_url"]):
        raise UsageError("Give --reference DIR, or --reference-url URL of a BF16 server with prompt logprobs.")
    where = {"path": str(flags["reference"])} if flags["reference"] else {"url": flags["reference_url"]}
    data["reference"] = where | {key: flags[key] for key in ("device", "ray", "tensor_parallel") if flags[key]}
    use = {"name": flags["profile"] or PROFILE, "concurrency": [flags["concurrency"] or CONCURRENCY]}
    data["profiles"] = [use | {"request_count": flags["requests"] or REQUESTS}]
    if flags["extra_inputs"]:
        data["extra_inputs"] = extra_inputs(flags["extra_inputs"])
    if flags["tier"]:
        data["tier"] = flags["tier"]
    return data
