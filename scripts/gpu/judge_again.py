"""Judge a finished run by another policy, from its files: prints the verdict's line and writes nothing.

python scripts/gpu/judge_again.py RUN beat-by-20
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from harness.judge import judge
from harness.pipeline import stored_plan


def main(run: Path, policy: str) -> None:
    """Only the policy differs from the run's own plan."""
    verdict = judge(stored_plan(run).model_copy(update={"policy": policy}), run)
    print(verdict.line)
    print(verdict.sentence)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
