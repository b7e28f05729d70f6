"""An endpoint made ready: launched when the plan says how, waited for, and asked what would spoil the run later."""

from __future__ import annotations

import difflib
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from harness import processes
from harness.errors import InvalidRun
from harness.isolation import exposures, without_secrets
from harness.measurement import Arm
from harness.run_store import write_json
from harness.traffic_plan import Endpoint, TrafficPlan

_BODY_LIMIT = 1 << 20


class Engines:
    """The engines of one run: each started on first need, kept up or not as the plan says, ended together."""

    def __init__(self, plan: TrafficPlan, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        self._kept = ExitStack()
        self._up: set[Arm] = set()

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *error: object) -> None:
        self._kept.close()
        self._up.clear()

    def serving(self, role: Arm) -> AbstractContextManager[Any]:
        """A context in which the role's endpoint answers. Writes its fingerprint to `<role>.json` in the folder."""
        if self._plan.engines == "one-at-a-time":
            return self._start(role)
        if role not in self._up:
            self._kept.enter_context(self._start(role))
            self._up.add(role)
        return nullcontext()

    @contextmanager
    def _start(self, role: Arm) -> Iterator[None]:
        with serving(self._plan, role, self._folder / f"{role}.log") as identity:
            write_json(self._folder / f"{role}.json", identity)
            yield


@contextmanager
def serving(plan: TrafficPlan, role: Arm, log: Path) -> Iterator[dict[str, Any]]:
    """Launch the role's engine if the plan says how, wait until it answers, yield its fingerprint, end it.

    Raises InvalidRun when it does not become ready, refuses the key, or does not serve the model.
    """
    endpoint = plan.endpoint(role)
    engine = _launch(plan, role, log) if endpoint.launch else None
    try:
        _wait_until_ready(endpoint, role, engine)
        # Asked after it answers: by then it has dropped the rights that it drops.
        reach = {"exposures": exposures(engine.pid, log.parent)} if engine else {}
        yield fingerprint(plan, role) | reach
    finally:
        if engine:
            engine.stop()


def fingerprint(plan: TrafficPlan, role: Arm) -> dict[str, Any]:
    """Ask every replica for its models and one token; return what identifies the engine."""
    endpoint = plan.endpoint(role)
    found: dict[str, Any] = {"role": role, "urls": list(endpoint.all_urls), "launch": endpoint.launch, "replicas": []}
    for url in endpoint.all_urls:
        models = _check_model(plan, role, url)
        reply, headers = _one_token(plan, role, url)
        found["replicas"].append(
            {
                "url": url,
                "models": models,
                "server": headers.get("Server"),
                "system_fingerprint": reply.get("system_fingerprint"),
                "owned_by": sorted({str(model.get("owned_by")) for model in models}),
            }
        )
    return found


def _launch(plan: TrafficPlan, role: Arm, log: Path) -> processes.OwnedProcess:
    endpoint = plan.endpoint(role)
    parts = urlsplit(endpoint.all_urls[0])
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex((parts.hostname or "127.0.0.1", parts.port or 80)) == 0:
            raise InvalidRun(
                f"endpoints.{role}: port {parts.port} already answers before the engine was launched; "
                "stop what serves there or name another port."
            )
    return processes.start(endpoint.launch or "", log=log, env=without_secrets(plan, endpoint.api_key_env))


def _wait_until_ready(endpoint: Endpoint, role: Arm, engine: processes.OwnedProcess | None) -> None:
    # Without a launch command the server must be up already; a few seconds cover a restart.
    deadline = time.monotonic() + (endpoint.ready_timeout_s if engine else 3)
    waiting = set(endpoint.all_urls)
    error = ""
    while waiting:
        for url in sorted(waiting):
            try:
                _get(endpoint, url + "/v1/models")
                waiting.discard(url)
            except urllib.error.HTTPError as answer:
                if answer.code in (401, 403):
                    raise InvalidRun(_key_sentence(endpoint, role, answer.code)) from None
                error = f"HTTP {answer.code} from /v1/models"
                if answer.code == 404:
                    waiting.discard(url)  # serves no model list; the one-token request decides
            except OSError as failure:
                error = str(getattr(failure, "reason", failure))
        if not waiting:
            return
        if engine and not engine.running():
            raise InvalidRun(
                f"endpoints.{role}: the launch command ended with code {engine.popen.returncode} before the engine "
                f"answered; its log {engine.log} ends: {log_tail(engine.log)}"
            )
        if time.monotonic() > deadline:
            where = (
                f"; its log {engine.log} ends: {log_tail(engine.log)}"
                if engine
                else "; start it, or add a launch command"
            )
            raise InvalidRun(f"endpoints.{role}: {sorted(waiting)[0]} does not answer ({error}){where}.")
        time.sleep(0.2)


def _check_model(plan: TrafficPlan, role: Arm, url: str) -> list[dict[str, Any]]:
    wanted = plan.served_model(role)
    try:
        models = [m for m in _get(plan.endpoint(role), url + "/v1/models").get("data", []) if isinstance(m, dict)]
    except (OSError, orjson.JSONDecodeError, AttributeError):
        return []
    names = [str(model.get("id"))[:200] for model in models]
    if names and wanted not in names:
        near = difflib.get_close_matches(wanted, names, n=1)
        hint = f"did you mean {near[0]}" if near else f"it serves {', '.join(names[:5])}"
        raise InvalidRun(
            f"endpoints.{role}: {url} does not serve the model {wanted}; {hint}. Set endpoints.{role}.model."
        )
    kept = ("id", "owned_by", "root", "max_model_len", "meta")
    return [{key: model[key] for key in kept if key in model} for model in models[:20]]


def _one_token(plan: TrafficPlan, role: Arm, url: str) -> tuple[dict[str, Any], dict[str, str]]:
    endpoint = plan.endpoint(role)
    text = "Name one colour."
    body: dict[str, Any] = {"model": plan.served_model(role), "max_tokens": 1, "temperature": 0, **plan.extra_inputs}
    if endpoint.api == "chat":
        path, body = "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}
    else:
        path, body = "/v1/completions", {**body, "prompt": text}
    request = urllib.request.Request(
        url + path, data=orjson.dumps(body), headers={"Content-Type": "application/json", **authorization(endpoint)}
    )
    try:
        with urllib.request.urlopen(request, timeout=plan.request_timeout_s) as answer:
            reply = orjson.loads(answer.read(_BODY_LIMIT))
            return (reply if isinstance(reply, dict) else {}), dict(answer.headers.items())
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise InvalidRun(_key_sentence(endpoint, role, error.code)) from None
        said = error.read(300).decode("utf-8", "replace")
        raise InvalidRun(
            f"endpoints.{role}: {url + path} answered HTTP {error.code} to a one-token request: {said}"
        ) from None
    except (OSError, orjson.JSONDecodeError) as error:
        raise InvalidRun(
            f"endpoints.{role}: {url + path} gave no JSON answer to a one-token request ({error})."
        ) from None


def _get(endpoint: Endpoint, url: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, headers=authorization(endpoint)), timeout=5) as answer:
        return orjson.loads(answer.read(_BODY_LIMIT))


def authorization(endpoint: Endpoint) -> dict[str, str]:
    """The header that carries the endpoint's key; none without a key."""
    return {"Authorization": f"Bearer {os.environ[endpoint.api_key_env]}"} if endpoint.api_key_env else {}


def _key_sentence(endpoint: Endpoint, role: Arm, code: int) -> str:
    if endpoint.api_key_env:
        return f"endpoints.{role}: the server refused the key in ${endpoint.api_key_env} (HTTP {code})."
    return (
        f"endpoints.{role}: the server wants a key (HTTP {code}); put it into an environment variable and name "
        f"that variable in endpoints.{role}.api_key_env."
    )


def log_tail(log: Path, lines: int = 5) -> str:
    """The last lines of a log on one line, for an error sentence."""
    text = log.read_bytes()[-4000:].decode("utf-8", "replace") if log.exists() else ""
    return " | ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip()) or "(empty)"
