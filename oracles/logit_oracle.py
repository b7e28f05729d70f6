"""The logit oracle on collected rows: `oracles/<arm>/logits.json` (metrics) and `logits.parquet` (one row a text)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from oracles.atomic import write_result, write_table
from oracles.kl_metrics import Positions, kl_metrics
from oracles.logit_files import Text, cut_to, read_documents, read_routes
from oracles.logits import Document, Phase, compare
from oracles.reference import LocalReference, OracleError, Reference
from oracles.result import Metric, OracleResult
from oracles.sampling import sampled_metrics

VERSION = 3
REFERENCE_IDS, SERVED_REFERENCE_IDS = 100, 20
COMPARED: tuple[Phase, ...] = ("prefill", "decode")
Arm = Literal["baseline", "candidate"]

SCHEMA = pa.schema(
    [
        ("pair", pa.int32()),
        ("line", pa.int32()),
        ("item", pa.string()),
        ("stratum", pa.string()),
        ("phase", pa.string()),
        ("tokens", pa.int32()),
        ("kld_sum", pa.float64()),
        ("covered", pa.float64()),
        ("klds", pa.list_(pa.float32())),
        ("logp", pa.list_(pa.float32())),
        ("logq", pa.list_(pa.float32())),
    ]
)


def score_logits(folder: Path, reference: Reference, arm: Arm, out_dir: Path, *, top_k: int) -> OracleResult:
    """Compare what an arm's server returned (`logits/<arm>`) with the reference.

    Args:
        folder: `logits/<arm>`.
        reference: p of every divergence.
        arm: whose rows they are.
        out_dir: `oracles/<arm>`.
        top_k: ids of each position that are used; give both arms the same.

    Raises:
        OracleError: a file cannot be read.
    """
    documents, routes = cut_to(read_documents(folder), top_k), read_routes(folder)
    told = {phase: str(sentence) for phase, sentence in routes["routes"].items()}
    metrics = {name: Metric.model_validate(value) for name, value in routes["metrics"].items()}
    rows: list[dict[str, Any]] = []
    for phase in COMPARED:
        part = [pair for pair in documents if pair[1].phase == phase]
        if not part:
            continue
        try:
            positions = _compared([document for _, document in part], reference)
            metrics |= {f"{name}@{phase}": metric for name, metric in kl_metrics(positions).items()}
            rows += _rows(part, positions)
        except (OracleError, ValueError) as error:
            told[phase] = f"{told.get(phase, '')} Refused: {error}".strip()
    drawn = [document for _, document in documents if document.phase == "sampled"]
    if drawn:
        try:
            found, sentence = sampled_metrics(drawn, reference)
            metrics |= {f"{name}@sampled": metric for name, metric in found.items()}
        except OracleError as error:
            sentence = f"Refused: {error}"
        told["sampled"] = f"{told.get('sampled', '')} {sentence}".strip()
    notes = tuple(f"{phase}: {sentence}" for phase, sentence in told.items())
    common: dict[str, Any] = {"oracle": "logits", "arm": arm, "version": VERSION, "notes": notes}
    common["inputs"] = {"reference": reference.revision}
    if not rows:
        reason = "No log-probabilities of this endpoint could be compared. " + " ".join(notes)
        return write_result(OracleResult(status="unscored", reason=reason, **common), out_dir)
    metrics["ids_compared"] = Metric(value=top_k, unit="ids", n=len(rows))
    write_rows(rows, out_dir / "logits.parquet")
    return write_result(OracleResult(status="scored", metrics=metrics, **common), out_dir)


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write logits.parquet atomically."""
    write_table(path, pa.Table.from_pylist(list(rows), schema=SCHEMA))


def _compared(documents: Sequence[Document], reference: Reference) -> Positions:
    ids = REFERENCE_IDS if isinstance(reference, LocalReference) else SERVED_REFERENCE_IDS
    room = reference.context_length
    fitting = [d for d in documents if len(d.context) + len(d.ids) <= room]
    if len(fitting) < len(documents):
        raise OracleError(f"{len(documents) - len(fitting)} texts are longer than the reference's context of {room}.")
    return compare(fitting, reference, top_k=ids)


def _rows(part: Sequence[tuple[Text, Document]], positions: Positions) -> list[dict[str, Any]]:
    rows = []
    for number, (text, document) in enumerate(part):
        here = positions.document == number
        rows.append(
            {
                "pair": text.pair,
                "line": text.line,
                "item": text.item,
                "stratum": text.stratum,
                "phase": document.phase,
                "tokens": int(here.sum()),
                "kld_sum": float(positions.kld[here].sum()),
                "covered": float(positions.covered[here].mean()),
                "klds": positions.kld[here].astype(np.float32),
                "logp": positions.logp[here].astype(np.float32),
                "logq": positions.logq[here].astype(np.float32),
            }
        )
    return rows
