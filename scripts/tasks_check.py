"""Do the timed stream and plain lm-eval give the same grades?

One gate with the offline pack in chat traffic, vLLM as the baseline; then the same items once more by
`lm_eval --model local-chat-completions`, one at a time, against the same vLLM.

    .venv/bin/python scripts/tasks_check.py [--items 70] [--run-dir DIR]

The last line is `items=... agree=... numeric=... other=...`. `numeric`: the grades differ and so do the answers, since
an engine's batches change its arithmetic. `other`: anything else, and the exit code is 1. Before it, a task of options
is read off vLLM's prompt log-probabilities and by plain lm-eval. With --run-dir an interrupted
check goes on where it stopped. Needs vLLM: $VLLM_VENV, as scripts/vllm_venv.sh makes it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml
from tokenizers import Tokenizer

from harness import pipeline
from harness.demo import MODEL_NAME, free_ports, llama_server, vllm_server
from harness.demo_models import DemoModels, prepare_models
from harness.endpoint import Engines
from harness.plan import Plan, check_files, make_plan
from harness.progress import silent
from harness.run_store import RunStore
from oracles.endpoint_reference import http_ask
from oracles.task_loading import TaskSpec
from oracles.task_options import ask_options, collect_options, grade_options
from oracles.task_pack import families

TASK = "options_sums"
ROUNDING = 0.05  # nats: a sum of BF16 log-probabilities, asked for in other batches


def main() -> int:
    """Run what is left of the check, compare, say it in one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=70)
    parser.add_argument("--run-dir", type=Path, default=Path("runs") / time.strftime("tasks-check-%Y%m%d-%H%M%S"))
    options = parser.parse_args()
    root = options.run_dir
    resumed = (root / "plan.yaml").is_file()
    plan = pipeline.stored_plan(root) if resumed else _plan(prepare_models(silent), options.items)
    store = RunStore.open(root) if resumed else RunStore.create(root)
    began = time.monotonic()
    if not (root / "verdict.json").is_file():
        pipeline.check(plan)
        verdict = pipeline.gate(plan, store, lambda text, *_: print(text, file=sys.stderr, flush=True))
        print(verdict.line)
        print(*(check.reason for check in verdict.checks if check.metric == "tasks"), sep="\n")
        print(f"gate: {time.monotonic() - began:.0f} s")
    plain = root.parent / f"{root.name}-lm-eval"
    unlike = 0
    if not list(plain.rglob("samples_*.jsonl")):
        with Engines(plan, plain / "engines") as engines, engines.serving("baseline"):
            url, model = plan.endpoints.baseline.all_urls[0], plan.served_model("baseline")
            unlike = check_options(url, model, plan.tokenizer_path or Path(), root.parent / f"{root.name}-options")
            lm_eval(plan, root / "tasks/pack", plain)
    return compare(root, plain) or int(unlike > 0)


def lm_eval(plan: Plan, pack: Path, out: Path, role: str = "baseline") -> None:
    """Plain lm-eval, as anyone would run it: one request at a time, no streaming."""
    endpoint = getattr(plan.endpoints, role)
    model = f"model={plan.served_model(role)},base_url={endpoint.all_urls[0]}/v1/chat/completions,num_concurrent=1"
    _run_lm_eval("local-chat-completions", model, families(), pack, out, "--apply_chat_template")


def _run_lm_eval(kind: str, about: str, tasks: Iterable[str], folder: Path, out: Path, *more: str) -> None:
    command = [sys.executable, "-m", "lm_eval", "--model", kind, "--model_args", about, "--tasks", ",".join(tasks)]
    command += ["--include_path", str(folder), "--log_samples", "--output_path", str(out), *more]
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none"})


def compare(root: Path, plain: Path) -> int:
    """Item by item: the grade of the timed answer of the baseline against plain lm-eval's."""
    theirs: dict[str, dict[str, Any]] = {}
    for path in plain.rglob("samples_*.jsonl"):
        task = path.name.removeprefix("samples_").rsplit("_", 1)[0]
        for line in path.read_text(encoding="utf-8").splitlines():
            sample = json.loads(line)
            theirs[f"task/{task}/{sample['doc_id']}"] = sample
    rows = pq.read_table(root / "oracles/baseline/tasks.parquet").to_pylist()
    agree = numeric = other = 0
    for row in rows:
        sample = theirs.get(row["item"])
        answer = sample["resps"][0][0] if sample else None
        if sample and float(sample["exact_match"]) == row["score"]:
            agree += 1
        elif sample and answer.strip() != row["text"].strip():
            numeric += 1
            print(f"numeric: {row['item']} timed {row['text']!r} ({row['score']:g}) alone {answer!r}")
        else:
            other += 1
            print(f"OTHER: {row['item']} timed {row['text']!r} ({row['score']:g}, {row['fate']}) alone {answer!r}")
    print(f"items={len(rows)} agree={agree} numeric={numeric} other={other}")
    return int(other > 0 or not rows)


def _plan(models: DemoModels, items: int) -> Plan:
    vllm_port, llama_port = free_ports(2)
    data = {
        "model": MODEL_NAME,
        "reference": {"path": str(models.reference)},
        "endpoints": {
            "baseline": {
                "url": f"http://127.0.0.1:{vllm_port}",
                "launch": vllm_server(models.reference, vllm_port),
            },
            "candidate": {
                "url": f"http://127.0.0.1:{llama_port}",
                "launch": llama_server(models.gguf["Q4_0"], llama_port, threads=1),
            },
        },
        "profiles": [{"name": "chat-steady", "concurrency": [8], "request_count": 8}],
        "tier": "smoke",
        "tasks": [{"name": "offline-pack", "limit": items}],
        "task_share": 0.85,
        "pairs": [2],
        "floor_tokens": 256,
    }
    return check_files(make_plan(data, source="tasks-check's plan", folder=Path.cwd()))


def check_options(url: str, model: str, tokenizer: Path, folder: Path) -> int:
    """Ask both ways, say how they compare, return how many items differ otherwise than by near ties."""
    task = write_task(folder)
    loaded = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return list(loaded.encode(text, add_special_tokens=False).ids)

    spec = TaskSpec(str(task), options=True)
    items, options, _ = collect_options(spec, encode, seed=1)
    said = pq.read_table(ask_options(http_ask(url), model, options, folder / "rows.parquet")).to_pylist()
    rows = grade_options([spec], items, said, encode)
    plain = _plain(url, model, tokenizer, task, folder / "lm-eval")
    sums: dict[str, list[float]] = defaultdict(list)
    for row in said:
        sums[row["item"]].append(float(np.sum(row["logprobs"])))
    apart = max(
        abs(mine - float(theirs[0][0]))
        for name in plain
        for mine, theirs in zip(sums[name], plain[name]["resps"], strict=True)
    )
    differ = [row for row in rows if row["score"] != float(plain[row["item"]]["acc"])]
    other = [row for row in differ if _lead(sums[row["item"]]) > 2 * ROUNDING] + [
        r for r in rows if r["fate"] != "graded"
    ]
    right = sum(row["score"] for row in rows)
    print(
        f"options: items={len(rows)} agree={len(rows) - len(differ)} near_ties={len(differ) - len(other)} "
        f"other={len(other)} right={right:.0f} furthest_sum={apart:.4f} nats"
    )
    return len(other) + (apart > ROUNDING)


def write_task(folder: Path) -> Path:
    """The task's YAML and data: sums among near ones and the number added, at which a small model is often wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for n in range(40):
        one, other = 11 + 7 * n % 83, 12 + 29 * n % 71
        options = [str(one + other), str(one + other + 1), str(one + other - 10), str(other)]
        options = options[n % 4 :] + options[: n % 4]
        rows.append({"q": f"The sum of {one} and {other} is", "options": options, "a": -n % 4})
    (folder / f"{TASK}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config: dict[str, Any] = {
        "task": TASK, "output_type": "multiple_choice", "test_split": "test", "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str((folder / f"{TASK}.jsonl").resolve())}},
        "doc_to_text": "{{q}}", "doc_to_choice": "{{options}}", "doc_to_target": "{{a}}",
        "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    (folder / f"{TASK}.yaml").write_text(yaml.safe_dump(config))
    return (folder / f"{TASK}.yaml").resolve()


def _plain(url: str, model: str, tokenizer: Path, task: Path, out: Path) -> dict[str, dict[str, Any]]:
    """Plain lm-eval's samples by the item's name."""
    about = f"model={model},base_url={url}/v1/completions,tokenizer={tokenizer},num_concurrent=1"
    _run_lm_eval("local-completions", about, [TASK], task.parent, out)
    (path,) = out.rglob("samples_*.jsonl")
    samples = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {f"task/{TASK}/{sample['doc_id']}": sample for sample in samples}


def _lead(sums: list[float]) -> float:
    """How far the likeliest option is ahead."""
    first, second = sorted(sums, reverse=True)[:2]
    return first - second


if __name__ == "__main__":
    sys.exit(main())
