"""What the run stood on: versions, machine, load, GPU, and the judge's own code."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import harness
import oracles
import reports
import traffic_profiles
from harness.errors import InvalidRun

_PACKAGES = (harness, oracles, reports, traffic_profiles)
_VERSIONS = ("aiperf", "lm-eval", "numpy", "pydantic", "pyarrow", "scipy", "torch", "transformers", "tokenizers")


def describe() -> dict[str, Any]:
    """Everything that must agree before two runs are compared, and what explains a difference."""
    return {
        "enginegate": harness.__version__,
        "code_sha256": code_sha256(),
        **git_revision(_root()),
        "python": sys.version.split()[0],
        "versions": {name: _version(name) for name in _VERSIONS},
        "platform": platform.platform(),
        "cpu": {"model": cpu_model(), "count": psutil.cpu_count(), "load_average": list(os.getloadavg())},
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpus(),
    }


def git_revision(root: Path) -> dict[str, Any]:
    """The commit that `root` is a checkout of, and whether the four packages are not what that commit holds.

    None where that is not known: no git, or a repository further up that only surrounds an installed copy.
    """
    at, _, head = (_output("git", "-C", str(root), "rev-parse", "--show-toplevel", "HEAD") or "").partition("\n")
    if not head or Path(at).resolve() != root.resolve():
        return {"git_revision": None, "git_dirty": None}
    names = [package.__name__ for package in _PACKAGES]
    changed = _output("git", "-C", str(root), "status", "--porcelain", "--", *names)
    return {"git_revision": head, "git_dirty": changed != ""}  # git that did not answer vouches for nothing


def machine() -> dict[str, Any]:
    """What makes timings of two runs comparable: processor, cores, GPUs."""
    return {"cpu": cpu_model(), "cpus": psutil.cpu_count(), "gpus": [gpu["name"] for gpu in _gpus()]}


def code_sha256() -> str:
    """One hash over every source file of the four packages; InvalidRun when they come from different places."""
    _root()
    digest = hashlib.sha256()
    for package in _PACKAGES:
        folder = _folder(package)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix in {".py", ".yaml", ".j2", ".css", ".js"}:
                digest.update(f"{package.__name__}/{path.relative_to(folder)}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _folder(package: Any) -> Path:
    return Path(package.__file__).resolve().parent


def _root() -> Path:
    roots = {_folder(package).parent for package in _PACKAGES}
    if len(roots) != 1:
        # A foreign folder called `reports` on PYTHONPATH would otherwise judge in our name.
        found = ", ".join(str(_folder(package)) for package in _PACKAGES)
        raise InvalidRun(f"enginegate's packages come from different places ({found}); unset PYTHONPATH and try again.")
    return roots.pop()


def _version(name: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _output(*command: str) -> str | None:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    return None


def cpu_model() -> str:
    """The processor's name, as the kernel gives it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _gpus() -> list[dict[str, str]]:
    fields = ("name", "driver_version", "memory.total", "uuid")
    text = _output("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    rows = [line.split(", ") for line in (text or "").splitlines()]
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]
