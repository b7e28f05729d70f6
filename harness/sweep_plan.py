"""The plan of a sweep: endpoints by name, profiles and loads; read and resolved as strictly as a gate's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from harness.arguments import concurrencies, named_urls
from harness.errors import UsageError
from harness.traffic_plan import NamedPlan, anchored, check_endpoints, named_parts, read_yaml, validate


class SweepPlan(NamedPlan):
    """A whole sweep: every endpoint under every load of every profile, speed only."""

    kind: Literal["sweep"] = "sweep"
    rounds: int = Field(1, ge=1, le=100, description="how often the whole sweep is repeated, with fresh prompts")
    calibrate: bool = Field(True, description="measure at the end what this client adds at every endpoint's shape")

    @property
    def most_pairs(self) -> int:
        """Groups of visits: one for each profile in each round, so that a kill costs one profile at most."""
        return self.rounds * len(self.profiles)  # and one more for every rate that a search tries

    @property
    def searches(self) -> bool:
        """A sweep's endpoints may be asked different rates."""
        return True


def load_sweep(path: Path, changes: dict[str, Any]) -> SweepPlan:
    """Read a sweep's YAML file; `changes` are keys that the command line sets over it."""
    data = read_yaml(path, "docs/sweep.md")
    return check_sweep(make_sweep(data | changes, source=str(path), folder=path.parent))


def make_sweep(data: dict[str, Any], *, source: str, folder: Path) -> SweepPlan:
    """Validate a sweep's data; `source` names it in errors, `folder` anchors relative paths."""
    return anchored(validate(SweepPlan, data, source, named_parts(data)), folder)


def check_sweep(plan: SweepPlan) -> SweepPlan:
    """Refuse a sweep whose local files or environment variables are not there."""
    check_endpoints(plan)
    return plan


def sweep_data(flags: dict[str, Any]) -> dict[str, Any]:
    """A sweep's keys from the command line's flags; only those that were given."""
    data: dict[str, Any] = {key: flags[key] for key in ("model", "tier", "seed", "rounds") if flags[key] is not None}
    if flags["no_calibration"]:
        data["calibrate"] = False
    if flags["tokenizer"]:
        data["tokenizer"] = str(flags["tokenizer"])
    if flags["endpoints"]:
        data["endpoints"] = named_endpoints(flags)
    elif flags["launch"]:
        raise UsageError("--launch NAME=COMMAND belongs to an --endpoint NAME=URL; give that too.")
    loads: dict[str, Any] = {}
    if flags["concurrency"]:
        loads["concurrency"] = concurrencies("--concurrency", flags["concurrency"])
    if flags["request_rate"]:
        loads["request_rate"] = _rates(flags["request_rate"])
    if flags["request_count"]:
        loads["request_count"] = flags["request_count"]
    if flags["profiles"]:
        data["profiles"] = [{"name": name, **loads} for name in flags["profiles"]]
    elif loads:
        data["profiles"] = [{"name": "sweep", **loads}]
    return data


def named_endpoints(flags: dict[str, Any]) -> dict[str, Any]:
    """`--endpoint NAME=URL` and `--launch NAME=COMMAND` as a plan's endpoints. Raises UsageError."""
    common = {key: flags[key] for key in ("api", "api_key_env") if flags[key]}
    found = {name: {"url": url, **common} for name, url in named_urls(flags["endpoints"]).items()}
    for value in flags["launch"]:
        name, separator, command = value.partition("=")
        if not separator or not command.strip() or name not in found:
            known = ", ".join(found)
            raise UsageError(f"--launch: {value!r} is no NAME=COMMAND with the name of an --endpoint ({known}).")
        found[name]["launch"] = command
    return found


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--request-rate: {text!r} is no list of requests per second such as 0.5,1,2.") from None
