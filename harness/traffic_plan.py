"""What a gate's plan and a sweep's have in common: endpoints, profiles, and how requests are sent.

Read strictly, resolved in full, no side effects but reading the named files.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from harness.arguments import concurrencies
from harness.errors import UsageError
from harness.run_store import RunStore


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
    build: tuple[Path, ...] = Field(
        (), description="files and folders that are the build: tells a repeat from a new one"
    )
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


class Use(Strict):
    """Something named by a plan: by its own name, or by a path to a YAML file."""

    name: str


class ProfileUse(Use):
    """A traffic profile by name or path, with what the plan changes about it."""

    tier: Literal["smoke", "gate", "nightly"] | None = None
    concurrency: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    request_rate: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    request_count: int | None = Field(None, ge=1, description="requests a cell; default: the profile's own rule")
    capacity_per_s: float | None = Field(
        None, gt=0, description="requests/s the baseline sustains, for rates that are shares of it; default: measured"
    )
    task_share: float | None = Field(None, ge=0, le=0.9, description="as the plan's task_share, for this profile")

    @field_validator("concurrency", mode="before")
    @classmethod
    def _ranges_too(cls, value: Any) -> Any:
        """`1,2,4..256` as on the command line."""
        if not isinstance(value, str):
            return value
        try:
            return concurrencies("concurrency", value)
        except UsageError as error:
            raise ValueError(str(error).removeprefix("concurrency: ")) from None


class TrafficPlan(Strict):
    """What a gate and a sweep have in common: who is sent what, and how. Endpoints come with the subclass."""

    schema_version: Literal[1] = 1
    model: str
    tokenizer: Path | None = Field(None, description="folder with tokenizer.json; default: the reference's")
    profiles: tuple[ProfileUse, ...] = Field(min_length=1)
    tier: Literal["smoke", "gate", "nightly"] = "gate"
    min_requests: int = Field(1, ge=1, description="fewest requests a cell, whatever its profile says")
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

    @field_validator("profiles", mode="before")
    @classmethod
    def _names_are_enough(cls, value: Any) -> Any:
        return names_are_enough(value)

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the endpoints, which are also the names of their folders in a pair."""
        raise NotImplementedError

    @property
    def most_pairs(self) -> int:
        """Pairs that the run has at most."""
        raise NotImplementedError

    @property
    def hides_seed(self) -> bool:
        """Whether prompts come from a secret, so that the seed they are drawn with is written nowhere."""
        return False

    @property
    def searches(self) -> bool:
        """Whether a profile may search its rate: a pair's two arms must be asked the same."""
        return False

    @property
    def tokenizer_path(self) -> Path | None:
        """Folder with tokenizer.json, or None."""
        return self.tokenizer

    def endpoint(self, arm: str) -> Endpoint:
        """The endpoint of that name."""
        raise NotImplementedError

    def served_model(self, arm: str) -> str:
        """The model name that this arm's requests carry."""
        return self.endpoint(arm).model or self.model


ArmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]


class NamedPlan(TrafficPlan):
    """A plan whose endpoints have names of their own, any number of them."""

    endpoints: dict[ArmName, Endpoint] = Field(min_length=1, max_length=16)

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the endpoints, in the order given."""
        return tuple(self.endpoints)

    def endpoint(self, arm: str) -> Endpoint:
        """The endpoint of that name."""
        return self.endpoints[arm]


P = TypeVar("P", bound=TrafficPlan)
U = TypeVar("U", bound=Use)


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """The keys of a plan file. UsageError when it is missing, no YAML, or holds something else than keys."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"There is no plan file {path}{_near_file(path)}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not readable YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} must hold keys such as model, endpoints and profiles; see {what}.")
    return data


def stored_data(root: Path, kind: str) -> dict[str, Any]:
    """The keys of a run directory's plan; UsageError when it is the run of another command than `kind`."""
    data = read_yaml(RunStore.open(root).root / "plan.yaml", "docs/files.md")
    found = str(data.get("kind", "gate"))[:40]
    if found != kind:
        raise UsageError(
            f"{root} is the run of a {found}, not of a {kind}; go on with it: "
            f"enginegate {found} --run-dir {root} --resume"
        )
    return data


def validate(model: type[P], data: dict[str, Any], source: str, parts: Mapping[Any, type[Strict]]) -> P:
    """A plan of that type from data; `source` names it in errors, `parts` says which model a key in it opens."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        told = [_sentence(source, item, model, parts) for item in error.errors()[:5]]
        raise UsageError("\n".join(told)) from None


def named_parts(data: dict[str, Any]) -> dict[Any, type[Strict]]:
    """`parts` of `validate` for a NamedPlan's data, which may be anything yet."""
    endpoints = data.get("endpoints")
    names = endpoints if isinstance(endpoints, dict) else {}
    return {"profiles": ProfileUse, **dict.fromkeys(names, Endpoint)}


def anchored(plan: P, folder: Path) -> P:
    """The plan with the relative paths of its tokenizer and profiles taken from `folder`."""
    changes: dict[str, Any] = {"profiles": anchored_names(folder, plan.profiles)}
    if plan.tokenizer:
        changes["tokenizer"] = absolute(folder, plan.tokenizer)
    return plan.model_copy(update=changes)


def anchored_names(folder: Path, uses: Sequence[U]) -> tuple[U, ...]:
    """What is named by a YAML file has its path taken from `folder`; other names stay."""
    return tuple(
        use.model_copy(update={"name": str(absolute(folder, use.name))})
        if use.name.endswith((".yaml", ".yml"))
        else use
        for use in uses
    )


def names_are_enough(value: Any) -> Any:
    """`[a, {name: b}]` -> both as keys; anything else as it is, for the model to refuse."""
    return [{"name": item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else value


def absolute(folder: Path, path: Path | str) -> Path:
    """A path of a plan in `folder`."""
    return (folder / Path(path).expanduser()).resolve()


def check_model_folder(path: Path | None, key: str) -> None:
    """UsageError when `path` is not a Hugging Face model folder; `key` is the flag or key that names it."""
    if path is None or not (path / "config.json").is_file():
        raise UsageError(f"{key}: {path} has no config.json; name a Hugging Face model folder.")


def check_endpoints(plan: TrafficPlan) -> None:
    """Refuse a plan without a tokenizer's file, or whose keys are not in the environment."""
    if plan.tokenizer_path and not (plan.tokenizer_path / "tokenizer.json").is_file():
        raise UsageError(
            f"tokenizer: {plan.tokenizer_path} has no tokenizer.json; save the tokenizer there with save_pretrained."
        )
    if plan.tokenizer_path is None:
        raise UsageError(
            "tokenizer: name a folder with tokenizer.json; the plan has no local reference to take it from."
        )
    for arm in plan.arms:
        variable = plan.endpoint(arm).api_key_env
        if variable and not os.environ.get(variable):
            raise UsageError(f"endpoints.{arm}.api_key_env: the environment variable {variable} is not set.")


def dump_plan(plan: TrafficPlan) -> str:
    """The resolved plan as YAML."""
    return yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _sentence(source: str, error: Any, root: type[Strict], parts: Mapping[Any, type[Strict]]) -> str:
    key = ".".join(str(part) for part in error["loc"]) or "(top level)"
    if error["type"] == "extra_forbidden":
        owners = [parts[part] for part in error["loc"][:-1] if part in parts]
        allowed = list((owners[-1] if owners else root).model_fields)
        near = difflib.get_close_matches(str(error["loc"][-1]), allowed, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        return f"{source}: unknown key {key}{meant} (allowed: {', '.join(allowed)})."
    if error["type"] == "missing":
        return f"{source}: the key {key} is missing; every plan needs it."
    return f"{source}: {key}: {error['msg'].removeprefix('Value error, ')}."


def _near_file(path: Path) -> str:
    here = [p.name for p in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, here, n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else ""
