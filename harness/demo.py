"""`enginegate demo`: three candidates against one honest baseline, on real parts, on this machine."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import pipeline
from harness.demo_models import DemoModels, prepare_models
from harness.errors import InvalidRun
from harness.plan import check_files, make_plan
from harness.progress import Progress
from harness.run_store import RunStore
from harness.verdict import Status, Verdict

# The smoke tier, concurrency 1 and 4. 8 requests a cell, 32 answers an arm: enough documents to judge accuracy.
PROFILE = {"name": "chat-steady", "request_count": 8}
MODEL_NAME = "smollm2-135m"
PAIRS = [2]
FLOOR_TOKENS = 512


@dataclass(frozen=True)
class Candidate:
    """One engine of the demo and what an honest judge must say of it."""

    name: str
    what: str
    launch: str
    may_end_in: frozenset[Status]


@dataclass(frozen=True)
class Outcome:
    """The three verdicts and where the comparison lies."""

    candidates: tuple[Candidate, ...]
    verdicts: tuple[Verdict, ...]
    runs: tuple[Path, ...]
    report: Path

    def as_json(self) -> dict[str, Any]:
        """`{"verdicts": {name: {status, exit_code, first_failed_check, line, run}}, "report": path}`."""
        rows = zip(self.candidates, self.verdicts, self.runs, strict=True)
        return {
            "verdicts": {
                candidate.name: {
                    "status": verdict.status,
                    "mode": verdict.mode,
                    "exit_code": pipeline.exit_code(verdict),
                    "first_failed_check": verdict.failed_first[0] if verdict.failed_first else None,
                    "sentence": verdict.sentence,
                    "line": verdict.line,
                    "run": str(run),
                }
                for candidate, verdict, run in rows
            },
            "report": str(self.report),
        }


def run_demo(root: Path, progress: Progress, *, resume: bool = False) -> Outcome:
    """Prepare the models, gate each candidate into its own run under `root`, write one report of all three.

    Raises InvalidRun when a verdict is not what an honest judge must say.
    """
    from reports.html import write_report

    models = prepare_models(progress)
    port = free_ports(2)
    baseline = llama_server(models.gguf["Q8_0"], port[0], threads=1)
    chosen = candidates(models, port[1])
    verdicts, runs = [], []
    for number, candidate in enumerate(chosen, start=1):
        run = root / candidate.name
        going_on = resume and (run / "plan.yaml").exists()
        plan = pipeline.stored_plan(run) if going_on else _plan(models, baseline, port, candidate)
        store = RunStore.open(run) if going_on else RunStore.create(run)

        def say(doing: str, share: float | None = None, name: str = f"{number}/3 {candidate.name}") -> None:
            progress(f"{name}: {doing}", share)

        pipeline.check(plan)
        verdicts.append(pipeline.gate(plan, store, say))
        runs.append(run)
    report = write_report(runs, root / "report.html")
    outcome = Outcome(chosen, tuple(verdicts), tuple(runs), report)
    for candidate, verdict in zip(chosen, verdicts, strict=True):
        if verdict.status not in candidate.may_end_in:
            raise InvalidRun(
                f"{explain(outcome)}\n\nThe demo itself failed: {candidate.name} must not end in {verdict.status}."
            )
    return outcome


def candidates(models: DemoModels, port: int) -> tuple[Candidate, ...]:
    """The honest one, the fast but wrong one, and the one that says "a"."""
    letter_a = f"{sys.executable} -m harness.demo_engines.letter_a --port {port} --alias {MODEL_NAME}"
    not_failed = frozenset({Status.PASS, Status.INCONCLUSIVE, Status.FAIL})
    failed = frozenset({Status.FAIL})
    return (
        Candidate(
            "honest",
            "llama.cpp, the reference's own weights",
            llama_server(models.gguf["Q4_1"], port, threads=1),
            not_failed,
        ),
        Candidate(
            "fast-but-wrong",
            "llama.cpp, weights re-quantised to Q4_0",
            llama_server(models.gguf["Q4_0"], port, threads=1),
            failed,
        ),
        Candidate("letter-a", 'answers "a a a a" at once', letter_a, failed),
    )


def llama_server(gguf: Path, port: int, *, threads: int) -> str:
    """The launch command of the embedded engine."""
    return (
        f"exec {sys.executable} -m harness.demo_engines.llama_server --model '{gguf}' --alias {MODEL_NAME} "
        f"--port {port} --threads {threads} --parallel 4"
    )


def vllm_server(model: Path, port: int, *options: str) -> str:
    """The launch command of a real vLLM on the CPU, out of $VLLM_VENV (scripts/vllm_venv.sh makes it)."""
    return (
        "HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=1 "
        f"exec '{os.environ.get('VLLM_VENV', '.venv-vllm')}/bin/python' -m vllm.entrypoints.openai.api_server "
        f"--model '{model}' --served-model-name {MODEL_NAME} --dtype bfloat16 --max-model-len 2048 "
        f"--max-num-seqs 8 --enforce-eager --host 127.0.0.1 --port {port} {' '.join(options)}"
    )


def explain(outcome: Outcome) -> str:
    """The table of verdicts, a sentence for each, and the path of the report."""
    lines = [f"{'candidate':<16}{'verdict':<28}first check in the way"]
    for candidate, verdict in zip(outcome.candidates, outcome.verdicts, strict=True):
        status = verdict.status + (" (PROVISIONAL)" if verdict.mode == "quick" else "")
        lines.append(f"{candidate.name:<16}{status:<28}{verdict.failed_first[0] if verdict.failed_first else '-'}")
    lines.append("")
    for candidate, verdict in zip(outcome.candidates, outcome.verdicts, strict=True):
        lines.append(f"{candidate.name} ({candidate.what}): {verdict.sentence}")
    return "\n".join([*lines, "", f"Report: {outcome.report}"])


def _plan(models: DemoModels, baseline: str, ports: list[int], candidate: Candidate) -> Any:
    data = {
        "model": MODEL_NAME,
        "reference": {"path": str(models.reference)},
        "endpoints": {
            "baseline": {"url": f"http://127.0.0.1:{ports[0]}", "launch": baseline},
            "candidate": {"url": f"http://127.0.0.1:{ports[1]}", "launch": candidate.launch},
        },
        "profiles": [PROFILE],
        "tier": "smoke",
        "pairs": PAIRS,
        "floor_tokens": FLOOR_TOKENS,
    }
    return check_files(make_plan(data, source="the demo's plan", folder=Path.cwd()))


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
