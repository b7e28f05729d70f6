"""The plan of a gate: what is compared, under which traffic, by which rules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from harness.arguments import concurrencies
from harness.errors import UsageError
from harness.traffic_plan import (
    Endpoint,
    ProfileUse,
    Strict,
    TrafficPlan,
    Use,
    absolute,
    anchored,
    anchored_names,
    check_endpoints,
    check_model_folder,
    names_are_enough,
    read_yaml,
    validate,
)

QUICK_PAIRS = 5  # an exact one-sided 95 % signed-rank bound exists from five pairs


class Reference(Strict):
    """The BF16 model that answers are judged by."""

    path: Path | None = Field(None, description="local Hugging Face folder")
    url: str | None = Field(None, description="a BF16 server that returns prompt logprobs")
    model: str | None = Field(None, description="served model name behind url, when it differs from the plan's")
    api_key_env: str | None = Field(None, description="name of the environment variable that holds url's key")
    dtype: Literal["bfloat16", "float32", "float16"] = "bfloat16"
    device: str = "auto"
    tasks: bool = Field(False, description="also ask url the run's task items, for scores beside the engines'")
    ray: str | None = Field(None, description="address of a Ray cluster that scores; `local` starts one here")
    tensor_parallel: int = Field(1, ge=1, description="GPUs of this machine that the weights of path are cut over")

    @model_validator(mode="after")
    def _one_kind(self) -> Reference:
        if (self.path is None) == (self.url is None):
            raise ValueError("give either path (a local folder) or url (a server with prompt logprobs)")
        if self.tasks and self.url is None:
            raise ValueError("tasks needs url: only a server generates answers; a folder scores those of the engines")
        if self.ray is not None and self.path is None:
            raise ValueError("ray needs path: a folder that every machine of the cluster sees")
        if self.tensor_parallel > 1 and (self.path is None or self.ray is not None or self.device != "auto"):
            raise ValueError(
                "tensor_parallel takes the first GPUs of this machine: it needs path, and no device or ray"
            )
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} is no http(s) URL")
        return self


class TaskUse(Use):
    """A task by lm-eval's name, by YAML file, or `offline-pack`, with what the plan changes about it."""

    limit: int | None = Field(None, ge=1, description="items in all, drawn by the plan's seed; default: as many as fit")
    num_fewshot: int | None = Field(None, ge=0, description="default: the task's own")
    max_gen_toks: int | None = Field(None, ge=1, description="longest answer; default: the task's own")
    metric: str | None = Field(None, description="`metric` or `metric,filter` that scores an item; default: the first")
    cluster: str | None = Field(None, description="field of the data whose equal values belong together, e.g. passage")
    repeats: int = Field(1, ge=1, le=64, description="times each item is asked; for sampled answers")
    keep_thinking: bool = Field(False, description="grade the thinking too, instead of stripping it")
    options: bool = Field(
        False, description="compare log-probabilities of the task's options, asked apart from the timed stream"
    )

    @model_validator(mode="after")
    def _options_are_read_once(self) -> TaskUse:
        of_answers = {
            "repeats": self.repeats > 1,
            "max_gen_toks": self.max_gen_toks,
            "keep_thinking": self.keep_thinking,
        }
        if self.options and (given := [name for name, value in of_answers.items() if value]):
            raise ValueError(f"{given[0]} is of generated answers; options are only read")
        return self


class Endpoints(Strict):
    """The two arms."""

    baseline: Endpoint
    candidate: Endpoint


class Plan(TrafficPlan):
    """A whole gate. Everything left out has a default that is written to the run's plan.yaml."""

    reference: Reference | None = Field(None, description="without one, accuracy is not judged and nothing can PASS")
    endpoints: Endpoints
    tasks: tuple[TaskUse, ...] = Field((), description="lm-eval tasks whose items are mixed into the timed stream")
    task_share: float = Field(0.5, ge=0, le=0.9, description="most of a cell's requests that are task items")
    task_secret: str | None = Field(None, description="env:NAME or file:PATH: secret that sealed items are drawn from")
    policy: str = "beat-by-20"
    criteria: tuple[str, ...] = ()
    pairs: tuple[Annotated[int, Field(ge=2)], ...] = Field((6, 12), min_length=1, max_length=2)
    audit_share: float = Field(
        0.05, ge=0, le=1, description="audit requests mixed into the timed load, as a share of it; 0: no audits"
    )
    audit_logprobs: bool = Field(
        False, description="also ask some requests again with logprobs; both endpoints must take them"
    )
    floor_tokens: int = Field(2048, ge=0, description="tokens on which the reference's own noise floor is measured")
    floor: Path | None = Field(None, description="folder that `enginegate floor` wrote; default: measured in the run")
    logit_documents: int | None = Field(
        None, ge=0, description="texts whose log-probabilities engines are asked for; default: 48 if a criterion is kld"
    )
    history: Path | None = Field(None, description="history.jsonl of all attempts; default: beside the run directory")
    looks: int = Field(20, ge=1, description="full runs on held-out prompts that are allowed, whatever the build")
    prompt_secret: str | None = Field(
        None, description="env:NAME or file:PATH: secret that held-out prompts are drawn from"
    )
    aa: bool = Field(False, description="set by gate --aa: the baseline in both arms, judged under no-regression")
    budget_minutes: float | None = Field(
        None, gt=0, description="minutes of visits (AIPerf's start included) that a run may spend"
    )

    @field_validator("tasks", mode="before")
    @classmethod
    def _task_names_are_enough(cls, value: Any) -> Any:
        return names_are_enough(value)

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

    @model_validator(mode="after")
    def _held_out(self) -> Plan:
        if self.prompt_secret and self.mode == "quick":
            raise ValueError(
                f"prompt_secret: held-out prompts are for full runs, which need {QUICK_PAIRS} pairs before their "
                "first look; --quick runs the same plan on public prompts"
            )
        return self

    @model_validator(mode="after")
    def _options_are_proved(self) -> Plan:
        if self.option_tasks and (self.reference is None or self.logit_documents == 0):
            raise ValueError(
                "tasks with `options` need a reference, and logit_documents to prove the endpoints' rows by"
            )
        return self

    @property
    def timed_tasks(self) -> tuple[TaskUse, ...]:
        """Tasks whose items travel in the timed stream."""
        return tuple(use for use in self.tasks if not use.options)

    @property
    def option_tasks(self) -> tuple[TaskUse, ...]:
        """Tasks whose options are asked about apart."""
        return tuple(use for use in self.tasks if use.options)

    @property
    def hides_seed(self) -> bool:
        """Whether `prompt_secret` draws the prompts."""
        return self.prompt_secret is not None

    @property
    def mode(self) -> Literal["full", "quick"]:
        """Quick when the first look has too few pairs for an exact bound."""
        return "full" if self.pairs[0] >= QUICK_PAIRS else "quick"

    @property
    def arms(self) -> tuple[str, ...]:
        """Baseline and candidate."""
        return ("baseline", "candidate")

    @property
    def most_pairs(self) -> int:
        """Pairs of the last look."""
        return self.pairs[-1]

    @property
    def tokenizer_path(self) -> Path | None:
        """Folder with tokenizer.json, or None."""
        return self.tokenizer or (self.reference.path if self.reference else None)

    def endpoint(self, arm: str) -> Endpoint:
        """The endpoint of one of the two arms."""
        found: Endpoint = getattr(self.endpoints, arm)
        return found


def load_plan(path: Path, changes: dict[str, Any] | None = None) -> Plan:
    """Read, validate and resolve a plan file; relative paths are taken from the file's own folder.

    `changes` are keys that the command line sets over the file. Raises UsageError with file, key and what is allowed.
    """
    data = read_yaml(path, "README, 'A plan'")
    return check_files(make_plan(data | (changes or {}), source=str(path), folder=path.parent))


def make_plan(data: dict[str, Any], *, source: str, folder: Path) -> Plan:
    """Validate plan data; `source` names it in errors, `folder` anchors relative paths."""
    parts: dict[Any, type[Strict]] = {
        "endpoints": Endpoints,
        "baseline": Endpoint,
        "candidate": Endpoint,
        "reference": Reference,
        "profiles": ProfileUse,
        "tasks": TaskUse,
    }
    plan = anchored(validate(Plan, data, source, parts), folder)
    changes: dict[str, Any] = {"tasks": anchored_names(folder, plan.tasks)}
    if plan.reference and plan.reference.path:
        changes["reference"] = plan.reference.model_copy(update={"path": absolute(folder, plan.reference.path)})
    if plan.floor:
        changes["floor"] = absolute(folder, plan.floor)
    if plan.policy.endswith((".yaml", ".yml")):
        changes["policy"] = str(absolute(folder, plan.policy))
    if plan.history:
        changes["history"] = absolute(folder, plan.history)
    if plan.prompt_secret and plan.prompt_secret.startswith("file:"):
        changes["prompt_secret"] = f"file:{absolute(folder, plan.prompt_secret.removeprefix('file:'))}"
    candidate = plan.endpoints.candidate
    if candidate.build:
        named = candidate.model_copy(update={"build": tuple(absolute(folder, path) for path in candidate.build)})
        changes["endpoints"] = plan.endpoints.model_copy(update={"candidate": named})
    return plan.model_copy(update=changes)


def plan_data(flags: dict[str, Any]) -> dict[str, Any]:
    """A plan from the command line's flags: two URLs, a model, a reference and profiles."""
    data: dict[str, Any] = {
        "model": flags["model"],
        "endpoints": {"baseline": {"url": flags["baseline"]}, "candidate": {"url": flags["candidate"]}},
        "profiles": [{"name": name} for name in flags["profiles"]],
    }
    if flags["concurrency"]:
        loads = concurrencies("--concurrency", flags["concurrency"])
        data["profiles"] = [use | {"concurrency": loads} for use in data["profiles"]]
    if flags["reference"]:
        data["reference"] = {"path": str(flags["reference"])}
    if flags["tokenizer"]:
        data["tokenizer"] = str(flags["tokenizer"])
    return data


def check_files(plan: Plan) -> Plan:
    """Refuse a plan whose local files or environment variables are not there."""
    if plan.reference and plan.reference.path:
        check_model_folder(plan.reference.path, "reference.path")
    check_endpoints(plan)
    variable = plan.reference.api_key_env if plan.reference else None
    if variable and not os.environ.get(variable):
        raise UsageError(f"reference.api_key_env: the environment variable {variable} is not set.")
    return plan
