"""The detection matrix: every engine of tests/engines through the real pipeline, and docs/zoo.md from what came out.

    python scripts/zoo.py                     the whole matrix: one gate with live models, then one gate an engine
    python scripts/zoo.py --sample 3          honest ones and a rotating sample of the others (CI)
    python scripts/zoo.py --fast              the honesty oracles alone on the virtual clock, no AIPerf, no model

Engines play answers that two real models gave in the first gate (see tests/engines/recorded.py); those that change
what a model is asked stand before the live models. Finished gates are kept in --out and not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.demo_models import prepare_models  # noqa: E402
from tests.engines.cheats import catalogue  # noqa: E402
from tests.engines.dialects import DIALECTS  # noqa: E402
from tests.engines.fast import FastGate, fast_gate  # noqa: E402
from tests.engines.honest import engines as honest_engines  # noqa: E402
from tests.engines.recorded import bank  # noqa: E402
from tests.engines.stream import Engine  # noqa: E402

MODEL = "smollm2-135m"
PORTS = {"baseline": 18431, "candidate": 18432, "claimed": 18433, "cheaper": 18434}
BASELINE_PACE = ["--ttft-ms", "60", "--itl-ms", "9"]
NEEDS_PIPELINE = {"token_margin", "ttft"}  # the BF16 reference, and the gate's own speed criteria
CANDIDATE_PACE = ["--ttft-ms", "40", "--itl-ms", "6"]


@dataclass(frozen=True)
class Row:
    """One line of the matrix."""

    engine: str
    dialect: str
    does: str
    expected: str
    fired: tuple[str, ...]
    verdict: str
    tokens: int
    seconds: float

    @property
    def honest(self) -> bool:
        """Nothing must be said of it."""
        return not self.expected

    @property
    def named(self) -> bool:
        """Was the check that must notice among those that did?"""
        return any(self.expected in check for check in self.fired)


def main() -> None:
    """Gate the chosen engines, write the page, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", help="names from the catalogue; default: all")
    parser.add_argument("--fast", action="store_true", help="honesty oracles only, virtual clock")
    parser.add_argument("--sample", type=int, help="so many dishonest engines, another choice every day")
    parser.add_argument("--honest-runs", type=int, default=1, help="A/A gates of the honest engine in each dialect")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "zoo")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "zoo.md")
    args = parser.parse_args()
    chosen = choose(args.engines, args.sample, args.honest_runs)
    if args.fast:
        chosen = [entry for entry in chosen if catalogue()[entry[0]].check not in NEEDS_PIPELINE]
    rows = list(fast(chosen) if args.fast else real(chosen, args.out))
    if not args.engines and args.sample is None:
        args.page.write_text(page(rows, fast=args.fast))
    print(summary(rows))
    sys.exit(0 if all(row.verdict != "FAIL" if row.honest else row.named for row in rows) else 1)


def choose(names: list[str], sample: int | None, honest_runs: int) -> list[tuple[str, str, int]]:
    """(engine, dialect, run) in the order they are gated."""
    honest = [("honest", d, run) for d in DIALECTS for run in range(honest_runs)]
    honest += [(name, "vllm", 0) for name in honest_engines() if name != "honest"]
    others = [(name, "vllm", 0) for name, engine in catalogue().items() if engine.check]
    if names:
        return [entry for entry in honest + others if entry[0] in names]
    if sample is not None:
        day = int(time.time() // 86400)
        return [honest[day % len(honest)], *random.Random(day).sample(others, min(sample, len(others)))]
    return honest + others


def fast(chosen: list[tuple[str, str, int]]) -> Iterator[Row]:
    """The fast path: a fresh workload for each honest run, one shared by the others."""
    for name, dialect, run in chosen:
        began = time.monotonic()
        engine = catalogue()[name]
        gate = FastGate(seed=1000 + run) if not engine.check and run else fast_gate(name == "no-thinking")
        visit = gate.visit(engine(), dialect)
        broken = tuple(f.name for f in gate.judge(visit) if f.status == "broken")
        tokens = sum(visit["output_tokens"].drop_null().to_pylist())
        verdict = "FAIL" if broken else "not accused"
        row = Row(name, dialect, engine.does, engine.check, broken, verdict, tokens, time.monotonic() - began)
        print(f"{name} ({dialect}): {', '.join(broken) or 'nothing'}", file=sys.stderr)
        yield row


def real(chosen: list[tuple[str, str, int]], out: Path) -> Iterator[Row]:
    """The real pipeline. The first gate, with both models live, makes the banks of answers."""
    out.mkdir(parents=True, exist_ok=True)
    reference, gguf = (models := prepare_models()).reference, models.gguf
    live = {role: _llama(gguf[name], PORTS[role]) for role, name in (("claimed", "Q4_1"), ("cheaper", "Q4_0"))}
    first = gate(out / "live-cheaper-weights", _plan(reference, live["claimed"], live["cheaper"], live=True))
    yield _row("live-cheaper-weights", "llama.cpp", "real Q4_0 weights under the name of Q4_1", "token_margin", first)
    banks = [f"--answers {bank}" for bank in write_banks(out / "live-cheaper-weights", out)]
    baseline = _serve("honest", "vllm", "baseline", reference, banks, BASELINE_PACE)
    with upstreams(live, wanted=any(_asks_anew(catalogue()[name]) for name, _, _ in chosen)):
        for name, dialect, run in chosen:
            engine = catalogue()[name]
            sources = [f"--upstream http://127.0.0.1:{PORTS[role]}" for role in live] if _asks_anew(engine) else banks
            candidate = _serve(name, dialect, "candidate", reference, sources, CANDIDATE_PACE)
            fixed = dialect != "transformers-serve"
            template = out / ("honest-vllm-0" if fixed else "honest-transformers-serve-0")
            folder = out / f"{name}-{dialect}-{run}"
            plan = _plan(reference, baseline, candidate, fixed=fixed)
            if run == 0 and template != folder and (template / "verdict.json").exists():
                take_baseline(template, folder, candidate)
            row = _row(name, dialect, engine.does, engine.check, gate(folder, plan))
            print(f"{name} ({dialect}): {row.verdict} {', '.join(row.fired)} {row.seconds:.0f} s", file=sys.stderr)
            yield row


def take_baseline(template: Path, run: Path, candidate: str) -> None:
    """Start a run from the workload and the baseline's visits of another: half the visits, the same evidence."""
    if run.exists():
        return
    made_anew = ("candidate", "oracles", "engines", "verdict.json", "manifest.json", "report.html", "junit.xml")
    shutil.copytree(template, run, ignore=shutil.ignore_patterns(*made_anew, "summary.md"))
    plan = yaml.safe_load((run / "plan.yaml").read_text())
    plan["endpoints"]["candidate"]["launch"] = candidate
    (run / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    steps = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines() if line]
    kept = [s for s in steps if "candidate" not in s["step"] and not s["step"].startswith("oracles")]
    for step in kept:
        for name in step["outputs"]:
            step["outputs"][name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
    (run / "journal.jsonl").write_text("".join(json.dumps(step) + "\n" for step in kept))


def _asks_anew(engine: type[Engine]) -> bool:
    """Does it ask the model something that nobody recorded?"""
    return engine.rewrite is not Engine.rewrite


def gate(run: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """`enginegate gate` in a process of its own; the verdict, with the seconds it took."""
    verdict = run / "verdict.json"
    if not verdict.exists():
        file = run.with_suffix(".yaml")
        file.write_text(yaml.safe_dump(plan, sort_keys=False))
        command = [
            str(Path(sys.executable).with_name("enginegate")),
            "gate",
            str(file),
            "--run-dir",
            str(run),
            "--json",
            "--no-ci",
        ]
        command += ["--resume"] if run.exists() else []
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        if not verdict.exists():
            raise SystemExit(f"{run.name}: no verdict (exit code {done.returncode})\n{done.stderr[-2000:]}")
    return dict(json.loads(verdict.read_text()))


def _row(name: str, dialect: str, does: str, expected: str, verdict: dict[str, Any]) -> Row:
    fired = tuple(c["check"] for c in verdict["checks"] if c["status"] == "FAIL")
    cost = verdict["cost"]
    return Row(name, dialect, does, expected, fired, verdict["status"], cost["output_tokens"], cost["wall_s"])


def _plan(reference: Path, baseline: str, candidate: str, *, live: bool = False, fixed: bool = True) -> dict[str, Any]:
    ports = ("claimed", "cheaper") if live else ("baseline", "candidate")
    profiles = ["zoo", "zoo-stops"] + (["zoo-fixed"] if fixed else [])
    arms = zip(("baseline", "candidate"), ports, (baseline, candidate), strict=True)
    return {
        "schema_version": 1,
        "model": MODEL,
        "reference": {"path": str(reference)},
        "endpoints": {a: {"url": f"http://127.0.0.1:{PORTS[p]}", "launch": launch} for a, p, launch in arms},
        "profiles": [{"name": str(ROOT / "tests/engines/profiles" / f"{name}.yaml")} for name in profiles],
        "policy": "no-regression",
        "pairs": [2],
        "floor_tokens": 512,
        "seed": 11,
    }


def _llama(gguf: Path, port: int) -> str:
    command = [sys.executable, "-m", "harness.demo_engines.llama_server", "--model", str(gguf), "--alias", MODEL]
    return shlex.join([*command, "--threads", "1", "--port", str(port)])


def _serve(engine: str, dialect: str, role: str, reference: Path, sources: list[str], pace: list[str]) -> str:
    command = [sys.executable, str(ROOT / "tests/engines/server.py"), "--engine", engine, "--dialect", dialect]
    command += ["--port", str(PORTS[role]), "--model", MODEL, "--tokenizer", str(reference), *pace]
    return "exec " + shlex.join([*command, *(word for source in sources for word in source.split(" ", 1))])


def write_banks(run: Path, out: Path) -> list[Path]:
    """The answers of both models as JSON files."""
    banks = []
    for role in ("baseline", "candidate"):
        file = out / f"answers-{role}.json"
        file.write_text(json.dumps(bank(run, role)))
        banks.append(file)
    return banks


@contextmanager
def upstreams(live: dict[str, str], wanted: bool) -> Iterator[None]:
    """The two real models, running while the block does."""
    running = [subprocess.Popen(shlex.split(c), cwd=ROOT) for c in live.values()] if wanted else []
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(timeout=20)


def summary(rows: list[Row]) -> str:
    """The last line: how many were caught, by the check named for them, and how many honest ones failed."""
    bad, honest = [r for r in rows if not r.honest], [r for r in rows if r.honest]
    caught, named = sum(r.verdict == "FAIL" for r in bad), sum(r.named for r in bad)
    failed = sum(r.verdict == "FAIL" for r in honest)
    return f"caught={caught}/{len(bad)} named={named}/{len(bad)} honest_failed={failed}/{len(honest)}"


def page(rows: list[Row], *, fast: bool) -> str:
    """docs/zoo.md."""
    how = (
        "the honesty oracles alone on the virtual clock (`python scripts/zoo.py --fast`), without the engines that "
        "only the BF16 reference or the speed criteria can name"
        if fast
        else "the whole pipeline: AIPerf, sockets, BF16 reference, gate (`make zoo`)"
    )
    lines = ["# The zoo: which engines the gate tells apart", "", f"Generated by {how}. `{summary(rows)}`", ""]
    lines += ["| engine | what it does | must be named by | was named by | verdict | tokens | s |", "|" + " --- |" * 7]
    for row in rows:
        first = sorted(row.fired, key=lambda check: row.expected not in check)
        others = f" and {len(first) - 1} more" if len(first) > 1 else ""
        lines.append(
            f"| {row.engine} ({row.dialect}) | {row.does} | {row.expected or 'nothing'} | "
            f"{first[0] + others if first else 'nothing'} | {row.verdict} | {row.tokens} | {row.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
