"""The plan: what is compared, under which traffic, by which rules. Read strictly, resolved in full, no side effects."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from harness.errors import UsageError

QUICK_PAIRS = 5  # an exact one-sided 95 % signed-rank bound exists from five pairs


class Strict(BaseModel):
    """Immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Endpoint(Strict):
    """One OpenAI-compatible server under test."""

    url: str | None = Field(None, description="base URL without /v1, e.g. http://127.0.0.1:8000")
    urls: tuple[str, ...] = Field((), description="several replicas; requests go round robin")
    model: str | None = Field(None, description="served model name, when it differs from the plan's")
    api: Literal["chat", "completions"] = "chat"
    launch: str | None = Field(None, description="shell command that serves in the foreground; ended after the run")
    api_key_env: str | None = Field(None, description="name of the environment variable that holds the key")
    gpus: int = Field(0, ge=0, description="GPUs it uses, for per-GPU figures")
    gpu_ids: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="which GPUs of this machine, as nvidia-smi numbers them; needed when it has more than it uses"
    )
    memory_bandwidth_gb_s: float | None = Field(
        None, gt=0, description="of one GPU, for the roofline; default: by the GPU's name, where it is known"
    )
    ready_timeout_s: float = Field(600, gt=0)

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> Endpoint:
        if bool(self.url) == bool(self.urls):
            raise ValueError("give either url or urls")
        if self.gpu_ids and len(set(self.gpu_ids)) != self.gpus:
            raise ValueError(f"gpu_ids names {len(set(self.gpu_ids))} GPUs, but gpus is {self.gpus}")
        for url in self.all_urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is no http(s) URL")
        return self

    @property
    def all_urls(self) -> tuple[str, ...]:
        """The replicas' base URLs, without a trailing slash or /v1."""
        return tuple(u.rstrip("/").removesuffix("/v1") for u in (self.urls or (self.url or "",)))


class Reference(Strict):
    """The BF16 model that answers are judged by."""

    path: Path | None = Field(None, description="local Hugging Face folder")
    url: str | None = Field(None, description="a BF16 server that returns prompt logprobs")
    model: str | None = Field(None, description="served model name behind url, when it differs from the plan's")
    api_key_env: str | None = Field(None, description="name of the environment variable that holds url's key")
    dtype: Literal["bfloat16", "float32", "float16"] = "bfloat16"
    device: str = "auto"

    @model_validator(mode="after")
    def _one_kind(self) -> Reference:
        if (self.path is None) == (self.url is None):
            raise ValueError("give either path (a local folder) or url (a server with prompt logprobs)")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} is no http(s) URL")
        return self


class ProfileUse(Strict):
    """A traffic profile by name or path, with what the plan changes about it."""

    name: str
    tier: Literal["smoke", "gate", "nightly"] | None = None
    concurrency: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    request_rate: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    request_count: int | None = Field(None, ge=1, description="requests a cell; default: the profile's own rule")
    task_share: float | None = Field(None, ge=0, le=0.9, description="as the plan's task_share, for this profile")


class TaskUse(Strict):
    """A task by lm-eval's name, by YAML file, or `offline-pack`, with what the plan changes about it."""

    name: str
    limit: int | None = Field(None, ge=1, description="items in all, drawn by the plan's seed; default: as many as fit")
    num_fewshot: int | None = Field(None, ge=0, description="default: the task's own")
    max_gen_toks: int | None = Field(None, ge=1, description="longest answer; default: the task's own")
    metric: str | None = Field(None, description="`metric` or `metric,filter` that scores an item; default: the first")
    cluster: str | None = Field(None, description="field of the data whose equal values belong together, e.g. passage")
    repeats: int = Field(1, ge=1, le=64, description="times each item is asked; for sampled answers")
    keep_thinking: bool = Field(False, description="grade the thinking too, instead of stripping it")


class Endpoints(Strict):
    """The two arms."""

    baseline: Endpoint
    candidate: Endpoint


class Plan(Strict):
    """A whole gate. Everything left out has a default that is written to the run's plan.yaml."""

    schema_version: Literal[1] = 1
    model: str
    reference: Reference | None = Field(None, description="without one, accuracy is not judged and nothing can PASS")
    tokenizer: Path | None = Field(None, description="folder with tokenizer.json; default: the reference's")
    endpoints: Endpoints
    profiles: tuple[ProfileUse, ...] = Field(min_length=1)
    tasks: tuple[TaskUse, ...] = Field((), description="lm-eval tasks whose items are mixed into the timed stream")
    task_share: float = Field(0.5, ge=0, le=0.9, description="most of a cell's requests that are task items")
    task_secret: str | None = Field(None, description="env:NAME or file:PATH: secret that sealed items are drawn from")
    tier: Literal["smoke", "gate", "nightly"] = "gate"
    policy: str = "beat-by-20"
    criteria: tuple[str, ...] = ()
    pairs: tuple[Annotated[int, Field(ge=2)], ...] = Field((6, 12), min_length=1, max_length=2)
    seed: int = Field(7, ge=0, lt=2**63)
    engines: Literal["together", "one-at-a-time"] = Field(
        "together", description="launched engines stay up for the whole run, or only for their own visits"
    )
    connection_reuse: Literal["never", "pooled"] = Field(
        "never", description="pooled races with servers that close idle connections (docs/adr/002)"
    )
    request_timeout_s: float = Field(300, gt=0)
    visit_timeout_s: float = Field(3600, gt=0, description="one AIPerf process; what is unanswered then is not served")
    extra_inputs: dict[str, Any] = Field(default_factory=dict, description="fields added to every request body")
    floor_tokens: int = Field(2048, ge=0, description="tokens on which the reference's own noise floor is measured")
    min_requests: int = Field(1, ge=1, description="fewest requests a cell, whatever its profile says")
    aa: bool = Field(False, description="set by gate --aa: the baseline in both arms, judged under no-regression")
    budget_minutes: float | None = Field(
        None, gt=0, description="minutes of visits (AIPerf's start included) that a run may spend"
    )

    @field_validator("profiles", "tasks", mode="before")
    @classmethod
    def _names_are_enough(cls, value: Any) -> Any:
        return (
            [{"name": item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else value
        )

    @field_validator("tasks")
    @classmethod
    def _each_once(cls, value: tuple[TaskUse, ...]) -> tuple[TaskUse, ...]:
        twice = sorted({use.name for use in value if [other.name for other in value].count(use.name) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is named twice; keep one")
        return value

    @field_validator("pairs")
    @classmethod
    def _looks_grow(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError("looks must grow, e.g. [6, 12]")
        return value

    @property
    def mode(self) -> Literal["full", "quick"]:
        """Quick when the first look has too few pairs for an exact bound."""
        return "full" if self.pairs[0] >= QUICK_PAIRS else "quick"

    @property
    def tokenizer_path(self) -> Path | None:
        """Folder with tokenizer.json, or None."""
        return self.tokenizer or (self.reference.path if self.reference else None)

    def served_model(self, role: Literal["baseline", "candidate"]) -> str:
        """The model name that this arm's requests carry."""
        endpoint: Endpoint = getattr(self.endpoints, role)
        return endpoint.model or self.model


def load_plan(path: Path, changes: dict[str, Any] | None = None) -> Plan:
    """Read, validate and resolve a plan file; relative paths are taken from the file's own folder.

    `changes` are keys that the command line sets over the file. Raises UsageError with file, key and what is allowed.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"There is no plan file {path}{_near_file(path)}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not readable YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} must hold keys such as model, endpoints and profiles; see README, 'A plan'.")
    return check_files(make_plan(data | (changes or {}), source=str(path), folder=path.parent))


def make_plan(data: dict[str, Any], *, source: str, folder: Path) -> Plan:
    """Validate plan data; `source` names it in errors, `folder` anchors relative paths."""
    try:
        plan = Plan.model_validate(data)
    except ValidationError as error:
        raise UsageError("\n".join(_sentence(source, item) for item in error.errors()[:5])) from None
    return _anchor(plan, folder)


def plan_data(flags: dict[str, Any]) -> dict[str, Any]:
    """A plan from the command line's flags: two URLs, a model, a reference and profiles."""
    data: dict[str, Any] = {
        "model": flags["model"],
        "endpoints": {"baseline": {"url": flags["baseline"]}, "candidate": {"url": flags["candidate"]}},
        "profiles": [{"name": name} for name in flags["profiles"]],
    }
    if flags["concurrency"]:
        data["profiles"] = [use | {"concurrency": flags["concurrency"].split(",")} for use in data["profiles"]]
    if flags["reference"]:
        data["reference"] = {"path": str(flags["reference"])}
    if flags["tokenizer"]:
        data["tokenizer"] = str(flags["tokenizer"])
    return data


def check_files(plan: Plan) -> Plan:
    """Refuse a plan whose local files or environment variables are not there."""
    if plan.reference and plan.reference.path and not (plan.reference.path / "config.json").is_file():
        raise UsageError(f"reference.path: {plan.reference.path} has no config.json; name a Hugging Face model folder.")
    if plan.tokenizer_path and not (plan.tokenizer_path / "tokenizer.json").is_file():
        raise UsageError(
            f"tokenizer: {plan.tokenizer_path} has no tokenizer.json; save the tokenizer there with save_pretrained."
        )
    if plan.tokenizer_path is None:
        raise UsageError(
            "tokenizer: name a folder with tokenizer.json; the plan has no local reference to take it from."
        )
    for role in ("baseline", "candidate"):
        variable = getattr(plan.endpoints, role).api_key_env
        if variable and not os.environ.get(variable):
            raise UsageError(f"endpoints.{role}.api_key_env: the environment variable {variable} is not set.")
    variable = plan.reference.api_key_env if plan.reference else None
    if variable and not os.environ.get(variable):
        raise UsageError(f"reference.api_key_env: the environment variable {variable} is not set.")
    return plan


def dump_plan(plan: Plan) -> str:
    """The resolved plan as YAML."""
    return yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _anchor(plan: Plan, folder: Path) -> Plan:
    def absolute(path: Path) -> Path:
        return (folder / path.expanduser()).resolve()

    changes: dict[str, Any] = {}
    if plan.reference and plan.reference.path:
        changes["reference"] = plan.reference.model_copy(update={"path": absolute(plan.reference.path)})
    if plan.tokenizer:
        changes["tokenizer"] = absolute(plan.tokenizer)
    changes["profiles"] = tuple(
        use.model_copy(update={"name": str(absolute(Path(use.name)))}) if use.name.endswith((".yaml", ".yml")) else use
        for use in plan.profiles
    )
    changes["tasks"] = tuple(
        use.model_copy(update={"name": str(absolute(Path(use.name)))}) if use.name.endswith((".yaml", ".yml")) else use
        for use in plan.tasks
    )
    if plan.policy.endswith((".yaml", ".yml")):
        changes["policy"] = str(absolute(Path(plan.policy)))
    return plan.model_copy(update=changes)


def _sentence(source: str, error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"]) or "(top level)"
    if error["type"] == "extra_forbidden":
        allowed = _allowed_keys(error["loc"])
        near = difflib.get_close_matches(str(error["loc"][-1]), allowed, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        return f"{source}: unknown key {key}{meant} (allowed: {', '.join(allowed)})."
    if error["type"] == "missing":
        return f"{source}: the key {key} is missing; every plan needs it."
    return f"{source}: {key}: {error['msg'].removeprefix('Value error, ')}."


def _allowed_keys(location: tuple[Any, ...]) -> list[str]:
    models: dict[Any, type[Strict]] = {
        "endpoints": Endpoints,
        "baseline": Endpoint,
        "candidate": Endpoint,
        "reference": Reference,
        "profiles": ProfileUse,
        "tasks": TaskUse,
    }
    owners = [models[part] for part in location[:-1] if part in models]
    return list((owners[-1] if owners else Plan).model_fields)


def _near_file(path: Path) -> str:
    here = [p.name for p in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, here, n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else ""
