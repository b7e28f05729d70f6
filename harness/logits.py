"""The logit oracle's two halves in a run: asking the engines while they are up, and scoring what they returned."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from tokenizers import Tokenizer

from harness.criteria import read_criteria
from harness.measurement import Role
from harness.plan import Plan
from harness.plan import Reference as AskedReference
from harness.traffic_plan import TrafficPlan
from harness.workload import seed_for
from oracles.endpoint_reference import http_ask
from oracles.logit_files import TEXT_TOKENS, Text, collect, fewest_ids, read_documents
from oracles.logit_oracle import score_logits
from oracles.logits import TOP_K, Ask
from oracles.reference import Reference

DOCUMENTS = 48  # texts asked about when a criterion names kld
SHORTEST = 12  # tokens of a text that is worth asking about


def documents_wanted(plan: Plan) -> int:
    """How many texts the plan has the engines asked about: its own number, else some when a criterion names kld or
    options are read: these texts prove the rows."""
    if plan.logit_documents is not None:
        return plan.logit_documents
    needed = plan.option_tasks or any(c.metric == "kld" for c in read_criteria(plan.policy, plan.criteria))
    return DOCUMENTS if needed else 0


def workload_texts(workload: Path, tokenizer: Tokenizer, *, pair: int, count: int, seed: int) -> list[Text]:
    """At most `count` different prompts of a workload, drawn at random, as token ids without a chat template."""
    found: dict[str, Text] = {}
    rows = pq.read_table(workload, columns=["line", "kind", "item", "stratum", "messages"]).to_pylist()
    for row in rows:
        if row["kind"] == "warmup" or row["item"] in found:
            continue
        ids = tokenizer.encode(_written(row["messages"]), add_special_tokens=False).ids[:TEXT_TOKENS]
        if len(ids) >= SHORTEST:
            found[row["item"]] = Text(pair, row["line"], row["item"], row["stratum"], ids)
    texts = list(found.values())
    random.Random(seed).shuffle(texts)
    return sorted(texts[:count], key=lambda text: text.line)


def endpoint_ask(plan: TrafficPlan, arm: str) -> Ask:
    """What sends a body to an arm's first replica and returns its JSON answer."""
    endpoint = plan.endpoint(arm)
    key = os.environ.get(endpoint.api_key_env) if endpoint.api_key_env else None
    return http_ask(endpoint.all_urls[0], api_key=key, timeout_s=plan.request_timeout_s)


def reference_ask(reference: AskedReference) -> Ask:
    """The same for a reference server."""
    key = os.environ.get(reference.api_key_env) if reference.api_key_env else None
    return http_ask((reference.url or "").rstrip("/").removesuffix("/v1"), api_key=key)


def ask_endpoint(
    plan: TrafficPlan,
    arm: str,
    workload: Path,
    out: Path,
    tokenizer: Tokenizer,
    count: int,
    progress: Callable[[int, int], None],
) -> list[Path]:
    """Ask one arm about `count` texts of pair 1's workload and write what it returned into `out`."""
    texts = workload_texts(workload, tokenizer, pair=1, count=count, seed=seed_for(plan, 1, "logits"))
    return collect(endpoint_ask(plan, arm), plan.served_model(arm), texts, out, progress=progress)


def score_collected(root: Path, arms: Sequence[str], reference: Reference, progress: Callable[[str], None]) -> None:
    """Score what a run collected of its arms, if anything, into oracles/<arm>; all on equally many ids a position."""
    folders = {arm: folder for arm in arms if (folder := root / "logits" / arm).is_dir()}
    fewest = [fewest_ids(read_documents(folder)) for folder in folders.values()]
    top_k = min([TOP_K, *(number for number in fewest if number is not None)])
    for name, folder in folders.items():
        progress(f"comparing the log-probabilities of {name}")
        arm: Role = "baseline" if name == "baseline" else "candidate"
        score_logits(folder, reference, arm, root / "oracles" / name, top_k=top_k)


def _written(messages: str) -> str:
    """What people wrote in a workload row."""
    content = json.loads(messages)
    turns: Sequence[object] = content if isinstance(content, list) else [content]
    return "\n\n".join(str(turn.get("content") or "") if isinstance(turn, dict) else str(turn) for turn in turns)
