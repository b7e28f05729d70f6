"""Draw the trace slices in this folder from published statistics. None of their lines comes from a published file.

Mooncake (arXiv 2407.00079, conversation trace): 12,031 requests in an hour, mean input 12,035 and output 343 tokens,
about 40 % of the 512-token blocks seen before. Azure (2023, Splitwise, ISCA 2024): conversation with median 1,020 in
and 129 out, code with median 1,500 in and 13 out, arrivals burstier than Poisson. Interference: 24, 32 or 2 streams
that start together and a long prompt every two seconds.

    python traffic_profiles/traces/make_slices.py        # writes *.jsonl beside this file, the same bytes every time
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from traffic_profiles.text.draw import Draw

BLOCK = 512
REQUESTS = 600


def mooncake() -> list[dict[str, Any]]:
    """Sessions that come back with everything they said before, behind one system block that all share."""
    draw = Draw(1, "mooncake")
    clock_ms, next_block = 0.0, 1
    sessions: list[tuple[int, list[int]]] = []  # tokens so far, full blocks so far
    rows = []
    for _ in range(REQUESTS):
        clock_ms += -math.log(draw.unit()) * 3_600_000 / 12_031
        if len(sessions) > 20 and draw.unit() < 0.46:
            tokens, full = sessions.pop(len(sessions) - 1 - draw.below(min(200, len(sessions))))
            tokens += round(1500 * math.exp(1.1 * draw.normal()))
        else:
            tokens, full = BLOCK + round(5200 * math.exp(1.05 * draw.normal())), [0]
        tokens = min(tokens, 125_000)
        fresh = math.ceil(tokens / BLOCK) - len(full)
        blocks = full + list(range(next_block, next_block + max(0, fresh)))
        next_block += max(0, fresh)
        output = max(8, min(2000, round(240 * math.exp(0.85 * draw.normal()))))
        rows.append({"timestamp": round(clock_ms), "input_length": tokens, "output_length": output, "hash_ids": blocks})
        sessions.append((tokens + output, blocks[: tokens // BLOCK]))
    return rows


def azure() -> list[dict[str, Any]]:
    """Two thirds conversation, one third code; gamma gaps of shape 0.5."""
    draw = Draw(1, "azure")
    clock_ms = 0.0
    rows = []
    for _ in range(REQUESTS):
        clock_ms += draw.normal() ** 2 * 200  # chi-squared with one degree of freedom: gamma of shape 0.5, 5 a second
        if draw.unit() < 2 / 3:
            isl, osl = 1020 * math.exp(0.9 * draw.normal()), 129 * math.exp(0.9 * draw.normal())
        else:
            isl, osl = 1500 * math.exp(0.9 * draw.normal()), 13 * math.exp(0.8 * draw.normal())
        rows.append(
            {
                "timestamp": round(clock_ms),
                "input_length": round(min(max(isl, 16), 14_000)),
                "output_length": round(min(max(osl, 1), 1000)),
            }
        )
    return rows


def interference(streams: int, stream: tuple[int, int], long_prompt: int, long_prompts: int) -> list[dict[str, Any]]:
    """`streams` requests of `stream` (input, output) tokens at once, then a prompt for one token every two seconds."""
    rows = [{"timestamp": 0, "input_length": stream[0], "output_length": stream[1]} for _ in range(streams)]
    return rows + [
        {"timestamp": 2000 * (turn + 1), "input_length": long_prompt, "output_length": 1}
        for turn in range(long_prompts)
    ]


def slices() -> dict[str, list[dict[str, Any]]]:
    """File name -> its lines."""
    return {
        "mooncake.jsonl": mooncake(),
        "azure.jsonl": azure(),
        "interference-smoke.jsonl": interference(2, (100, 64), 500, 3),
        "interference-gate.jsonl": interference(24, (400, 512), 4096, 16),
        "interference-nightly.jsonl": interference(32, (1000, 2048), 16384, 60),
    }


def text(rows: list[dict[str, Any]]) -> str:
    """JSON lines."""
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


if __name__ == "__main__":
    for name, rows in slices().items():
        (Path(__file__).parent / name).write_text(text(rows), encoding="utf-8")
        sys.stdout.write(f"{name}: {len(rows)} requests\n")
