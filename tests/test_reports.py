"""What every rendering of a run says, and what it refuses to say."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import category
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reports import wording
from reports.axes import tick_text
from reports.change_points import change_points
from reports.clean_text import clean
from reports.definitions import DEFINITIONS, as_markdown, define
from reports.divergence import read_scored
from reports.examples import worst_examples
from reports.export import as_csv, run_tables, write_csv, write_png, write_svg
from reports.flips import flipped, read_flips, tasks_table
from reports.heatmap import heatmap
from reports.html import write_report
from reports.junit import junit_xml
from reports.kl_tails import kl_tail
from reports.markdown import MAX_BYTES, comparison, summary
from reports.page import next_step
from reports.pair_series import PairSeries
from reports.run_data import read_run
from reports.sections import sections
from reports.svg import as_svg
from reports.task_items import items_table
from reports.verdict_data import STATUSES
from tests.made_runs import Made, make_run

ROOT = Path(__file__).parents[1]
TWO = {"chat-steady": ("c1", "c8")}
ONE = {"decode-easy": ("c1",)}


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Made(profiles=TWO | ONE, speedup={"ttft": 1.4, "tpot": 1.5, "chat-steady:ttft": 1.1})
    return make_run(tmp_path_factory.mktemp("runs") / "failing", made)


@pytest.fixture(scope="module")
def passing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    margin = {"baseline": 0.03, "candidate": 0.02, "floor": 0.02}
    return make_run(
        tmp_path_factory.mktemp("runs") / "passing",
        Made(profiles=ONE, speedup={"ttft": 1.5, "tpot": 1.5}, margin=margin),
    )


def page_of(run: Path, tmp_path: Path) -> str:
    return write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")


def changed(run: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a run whose verdict.json was changed."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    verdict = json.loads((copy / "verdict.json").read_text())
    change(verdict)
    (copy / "verdict.json").write_text(json.dumps(verdict))
    return copy


# --- one source, every rendering ------------------------------------------------------------------------------------


def test_the_page_leads_with_the_verdict_and_its_limiting_cell(failing: Path, tmp_path: Path) -> None:
    html = page_of(failing, tmp_path)
    first_screen = html[: html.index('id="checks"')]
    limiting = json.loads((failing / "verdict.json").read_text())["failed_first"][0]
    for expected in ("FAIL", limiting, "Faster: FAIL", "Honest: PASS", "Fit to be judged?", "SmolLM2-135M"):
        assert expected in first_screen


def test_all_renderings_agree_with_verdict_json(failing: Path, tmp_path: Path) -> None:
    verdict = json.loads((failing / "verdict.json").read_text())
    cases = ElementTree.fromstring(junit_xml(failing)).findall(".//testcase")
    junit = {case.get("name"): len(case) == 0 for case in cases}
    assert junit.pop("verdict") is False
    assert junit == {check["check"]: check["status"] == "PASS" for check in verdict["checks"]}

    rows = list(
        csv.DictReader(io.StringIO(next(p for p in write_csv([failing], tmp_path) if p.stem == "checks").read_text()))
    )
    assert sorted(row["Status"] for row in rows) == sorted(check["status"] for check in verdict["checks"])
    numbers = {(row["Observed"], row["Interval low"], row["Bar"]) for row in rows}
    expected = {
        tuple("" if check[key] is None else repr(float(check[key])) for key in ("observed", "ci_low", "required"))
        for check in verdict["checks"]
    }
    assert numbers == expected

    html, text = page_of(failing, tmp_path), summary(failing)
    for check in verdict["checks"]:
        if check["cell"] and check["unit"] == "x":
            assert f"{check['observed']:.2f}×" in html
            assert f"{check['observed']:.2f}×" in text
    assert text.startswith("## ✕ FAIL")


def test_every_table_and_chart_of_the_page_is_exported(passing: Path, tmp_path: Path) -> None:
    run = read_run(passing)
    made = sections(run, PairSeries(run), read_scored(run))
    tables = {table.name for section in made for table in section.tables if table.rows}
    assert {path.stem for path in write_csv([passing], tmp_path / "csv")} == tables
    pngs = write_png([passing], tmp_path / "png")
    drawn = {chart.name for section in made for chart in section.charts if chart.only != "phone"}
    assert {path.stem for path in pngs} == drawn
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pngs)


def test_a_chart_on_paper_names_its_lines(passing: Path, tmp_path: Path) -> None:
    written = {path.stem: path.read_text() for path in write_svg([passing], tmp_path)}
    several = [
        name for name in written if name.startswith(("margin-tail", "margin-position", "pareto-", "distribution-"))
    ]
    assert len(several) > 3
    for name in several:
        assert ">candidate<" in written[name] and ">baseline<" in written[name], name


def test_the_metrics_page_is_what_the_report_shows() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == as_markdown()


def test_every_column_and_chart_is_defined(failing: Path) -> None:
    run = read_run(failing)
    made = sections(run, PairSeries(run), read_scored(run))
    named = {chart.define for section in made for chart in section.charts}
    named |= {column.define for section in made for table in section.tables for column in table.columns}
    named |= {metric.partition(".")[0] for check in run.of_family("speed") for metric in [check.metric]}
    assert named - {""} <= DEFINITIONS.keys()


@pytest.mark.parametrize("name", ["letter-a", "pass"])
def test_every_number_of_a_real_run_is_defined(name: str) -> None:
    for table in run_tables(read_run(ROOT / "tests" / "golden_runs" / name)):
        for column, items in zip(table.columns, zip(*(row.items for row in table.rows), strict=True), strict=True):
            if table.name != "oracles" and column.numeric:
                assert column.define in DEFINITIONS, (table.name, column.label)
            elif table.name == "oracles" and column.label == "Number":
                undefined = {item.shown for item in items if item.define not in DEFINITIONS}
                assert all(name.endswith(": not scored") for name in undefined), undefined


def test_the_comparison_is_exported_too(passing: Path, failing: Path, tmp_path: Path) -> None:
    runs = [failing, passing]
    assert {path.stem for path in write_csv(runs, tmp_path / "csv")} >= {"limits"}
    assert {path.stem for path in write_png(runs, tmp_path / "png")} >= {"all-decode-easy"}
    text = comparison(runs)
    assert text.index("1. passing") < text.index("2. failing") and "✓ PASS" in text and "✕ FAIL" in text


def test_a_measured_number_has_its_range_in_csv(failing: Path) -> None:
    table = next(table for table in run_tables(read_run(failing)) if table.name == "cells")
    row = next(csv.DictReader(io.StringIO(as_csv(table))))
    low, middle, high = (float(row[f"TTFT p50, ms{end}"]) for end in (" low", "", " high"))
    assert low < middle < high


def test_the_profiles_limits_are_drawn(failing: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(failing, run)
    slo = {"ttft_ms": 800, "tpot_ms": 40}
    entries = [{"cell": cell.name, "slo": slo} for cell in read_run(run).cells]
    (run / "pairs" / "01" / "pair.json").write_text(json.dumps({"pair": 1, "cells": entries}))
    html = page_of(run, tmp_path)
    assert "Shaded: TPOT within 40.0 ms." in html and "Limit: 800 ms." in html
    assert "Shaded" not in page_of(failing, tmp_path)


def test_a_tail_that_is_only_the_maximum_is_not_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Made(profiles=ONE, requests=12, pairs=2, planned=(2,), mode="quick"))
    columns = next(table for table in run_tables(read_run(run)) if table.name == "cells").columns
    shown = [column.label for column in columns]
    assert "TTFT p50, ms" in shown and "TTFT p95, ms" not in shown


def test_the_clients_own_bias_is_shown(failing: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(failing, run)
    bias = {
        "requests": 60, "failed": 2, "ttft_ms": 61.2, "ttft_bias_ms": 1.31, "ttft_bias_p99_ms": 4.0, "tpot_ms": 9.5,
        "tpot_bias": 0.004, "tpot_bias_p99": 0.02, "output_throughput_bias": -0.01, "fed": 0.98,
        "load_average_1m": 0.4,
    }  # fmt: skip
    cells = {"chat-steady/c1": {"candidate": bias}, "chat-steady/c8": {"candidate": bias | {"tpot_bias": None}}}
    (run / "calibration.json").write_text(json.dumps({"schema_version": 1, "margin": 0.02, "cells": cells}))
    table = next(table for table in run_tables(read_run(run)) if table.name == "calibration")
    shown = [[item.shown.replace("\u00a0", " ") for item in row.items] for row in table.rows]
    assert shown[0][2:8] == ["60, 2 failed", "61.2", "+1.31", "+4.00", "9.50", "+0.40 %"]
    assert shown[1][7] == wording.MISSING
    assert "beyond, the cell is INVALID" in page_of(run, tmp_path)


def test_a_statistic_is_found_under_its_metric() -> None:
    names = ("kld_p99.9", "delta_p_rms", "margin.batch", "score.sums", "k3_raw", "ttft.p95", "margin@position:8+")
    found = [known.key if (known := define(name)) else None for name in names]
    assert found == ["kld", "delta_p", "margin", "score", "k3", "ttft", "margin"]
    assert define("nothing_known") is None


def test_what_differs_between_the_engines_is_shown_and_what_is_equal_is_not() -> None:
    tables = {table.name: table for table in run_tables(read_run(ROOT / "tests" / "golden_runs" / "fast-but-wrong"))}
    rows = {row.items[0].shown: [item.shown for item in row.items[1:]] for row in tables["engine-differences"].rows}
    assert rows["replicas.0.models.0.meta.ftype"] == ["Q8_0", "Q4_0"]
    assert "replicas.0.models.0.meta.n_vocab" not in rows


def test_the_next_step_does_not_repeat_the_sentence() -> None:
    run = read_run(ROOT / "tests" / "golden_runs" / "letter-a")
    assert run.verdict and "requests: tokens came over 10 times faster" in run.verdict.next_step
    assert next_step(run) == ""


# --- states ---------------------------------------------------------------------------------------------------------

STATES = {
    "FAIL": Made(profiles=TWO, speedup={"ttft": 1.05, "tpot": 1.5}),
    "INCONCLUSIVE": Made(profiles=TWO, speedup={"ttft": 1.21, "tpot": 1.21}, noise=0.05),
    "INVALID": Made(profiles=TWO, invalid=("same-cache",)),
    "PROVISIONAL": Made(profiles=TWO, pairs=2, planned=(2,), mode="quick"),
    "not judged": Made(profiles=TWO, oracle=False),
    "1 cell": Made(profiles=ONE),
}


@pytest.mark.parametrize("word", STATES)
def test_each_state_has_a_sensible_page(word: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", STATES[word])
    html = page_of(run, tmp_path)
    assert word in html
    words = re.sub(r"<[^>]*>", " ", html[html.index("<body") : html.index("<script>")]).split()
    assert not {"None", "nan", "inf", "NaN"} & set(words)
    assert summary(run).startswith("## ")
    ElementTree.fromstring(junit_xml(run))


def test_a_pass_shows_both_halves(passing: Path, tmp_path: Path) -> None:
    html = page_of(passing, tmp_path)
    assert "PASS" in html and "As right: PASS" in html and "Faster: PASS" in html
    assert "<failure" not in junit_xml(passing).decode()


def test_a_sweep_of_any_endpoints_is_measured_not_judged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Made(profiles=TWO), verdict=False)
    for pair in (run / "pairs").iterdir():
        shutil.move(pair / "baseline", pair / "vllm")
        shutil.move(pair / "candidate", pair / "llama.cpp")
    plan = yaml.safe_load((run / "plan.yaml").read_text())
    (run / "plan.yaml").write_text(yaml.safe_dump({"model": plan["model"], "profiles": plan["profiles"]}))
    html = page_of(run, tmp_path)
    assert "Sweep: measured, not judged" in html
    assert "vllm" in html and "llama.cpp" in html
    assert "As right: PASS" not in html
    drawn = html[html.index('id="latency-chat-steady-ttft-title"') :]
    lines = drawn[: drawn.index("</svg>")]
    assert "s-cand" in lines and "s-third" in lines and "s-base" not in lines
    assert "closest to their bars" not in html and "speed-up by quantile" not in html
    assert junit_xml(run).count(b"<skipped") == 1


def test_a_gate_without_a_verdict_is_unfinished_not_passed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Made(profiles=ONE, pairs=2, planned=(2,)), verdict=False)
    assert "Unfinished: no verdict yet" in page_of(run, tmp_path)
    assert "Unfinished" in summary(run) and "--resume" in summary(run)
    assert junit_xml(run).count(b"<error") == 1


def test_two_hundred_cells_fold_into_profiles_and_stay_small(tmp_path: Path) -> None:
    profiles = {f"profile-{place:02d}": tuple(f"c{2**k}" for k in range(5)) for place in range(40)}
    run = make_run(
        tmp_path / "run", Made(profiles=profiles, pairs=2, planned=(2,), mode="quick", requests=2, oracle=False)
    )
    path = write_report([run], tmp_path / "report.html")
    assert path.stat().st_size < 3_000_000
    drawn = heatmap(read_run(run), PairSeries(read_run(run)), {}, fold=True)
    assert len(drawn.rows) == 10 and drawn.left_out == 30
    assert len(summary(run).encode()) < MAX_BYTES


# --- fail closed ----------------------------------------------------------------------------------------------------


def test_a_pass_that_its_checks_do_not_bear_out_is_invalid(failing: Path, tmp_path: Path) -> None:
    run = changed(failing, tmp_path, lambda verdict: verdict.update(status="PASS"))
    assert read_run(run).status == "INVALID"
    assert "contradicts itself" in summary(run)


def test_a_pass_without_checks_is_invalid(passing: Path, tmp_path: Path) -> None:
    assert read_run(changed(passing, tmp_path, lambda verdict: verdict.update(checks=[]))).status == "INVALID"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema_version": 2, "status": "PASS"}', '{"status": NaN}', "\x00"]
)
def test_a_verdict_that_cannot_be_read_is_invalid(content: str, tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text(content)
    assert read_run(tmp_path).status == "INVALID"
    assert b'type="INVALID"' in junit_xml(tmp_path)
    assert "INVALID" in page_of(tmp_path, tmp_path)


def test_no_run_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds neither"):
        read_run(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damaged_verdict_becomes_a_pass_or_a_crash(passing: Path, tmp_path: Path, data: st.DataObject) -> None:
    verdict = json.loads((passing / "verdict.json").read_text())
    key = data.draw(st.sampled_from(sorted(verdict)))
    verdict[key] = data.draw(JSON)
    check = verdict["checks"][0] if isinstance(verdict["checks"], list) and verdict["checks"] else {}
    if isinstance(check, dict) and check:
        check[data.draw(st.sampled_from(sorted(check)))] = data.draw(JSON)
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    run = read_run(tmp_path)
    assert run.status in STATUSES
    if run.status == "PASS":
        assert run.checks and all(one.status == "PASS" for one in run.checks)
    summary(tmp_path)
    ElementTree.fromstring(junit_xml(tmp_path))


@pytest.mark.parametrize("broken", ["measurements.json", "visit.json", "requests.parquet"])
def test_a_broken_file_is_named_and_the_page_still_drawn(broken: str, failing: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(failing, copy)
    for path in copy.glob(f"pairs/*/*/{broken}"):
        path.write_bytes(b"\x00broken")
    html = page_of(copy, tmp_path)
    assert "FAIL" in html
    if broken.endswith(".json"):
        assert f"{broken} cannot be read" in html


def test_missing_is_never_zero(failing: Path, tmp_path: Path) -> None:
    def erase(verdict: dict[str, Any]) -> None:
        for check in verdict["checks"]:
            check.update(observed=None, ci_low=None, ci_high=None, candidate=None)

    run = read_run(changed(failing, tmp_path, erase))
    table = next(table for table in run_tables(run) if table.name == "checks")
    assert {row.items[2].shown for row in table.rows} == {wording.MISSING}


def test_a_yaml_bomb_is_cut_short(tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text("{}")
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 11)]
    (tmp_path / "plan.yaml").write_text("\n".join(lines))
    assert len(str(read_run(tmp_path).plan)) < 20_000_000


# --- hostile text ---------------------------------------------------------------------------------------------------


def test_active_characters_are_shown_not_obeyed() -> None:
    assert clean("a\x1b[31mb\x00c\u202ed\ud800\ufffe") == "a⟨U+001B⟩[31mb⟨U+0000⟩c⟨U+202E⟩d⟨U+D800⟩⟨U+FFFE⟩"
    assert clean("नमस्ते عربى 👩‍🚀 e\u0301") == "नमस्ते عربى 👩‍🚀 e\u0301"
    assert clean("e" + "\u0301" * 50).count("\u0301") == 2
    assert len(clean("x" * 10_000_000)) < 2_100
    assert len(clean("\x00" * 10_000_000)) < 20_000


@given(st.text(max_size=300))
def test_cleaned_text_is_printable_and_cleaning_twice_changes_nothing(text: str) -> None:
    once = clean(text)
    assert all(char.isprintable() or char in "\n\t\u200c\u200d" or category(char) == "Zs" for char in once)
    assert clean(once) == once
    once.encode()


def test_markdown_and_csv_neutralise_what_a_cell_could_do(failing: Path, tmp_path: Path) -> None:
    def poison(verdict: dict[str, Any]) -> None:
        verdict["sentence"] = "<img src=x> @everyone [x](http://127.0.0.1) | `a`\n# head"
        verdict["checks"][0]["check"] = verdict["checks"][0]["metric"] = "=cmd()|x"

    run = changed(failing, tmp_path, poison)
    text = summary(run)
    line = next(line for line in text.splitlines() if "everyone" in line)
    assert "\\<img" in line and "\\@everyone" in line and "\\[x\\]" in line and "://" not in line and "\\# head" in line
    rows = (next(p for p in write_csv([run], tmp_path / "csv") if p.stem == "checks")).read_text()
    assert "'=cmd" in rows


def test_text_that_is_no_utf8_is_shown_as_replacement(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Made(profiles={"p": ("c1",)}, pairs=2, planned=(2,), mode="quick", requests=4))
    for path in run.glob("pairs/*/*/requests.parquet"):
        table = pq.read_table(path)
        broken = pa.array([b"broken \xff\xfe\x00 bytes"] * table.num_rows, pa.binary())
        column = pa.Array.from_buffers(pa.string(), len(broken), broken.buffers())
        pq.write_table(table.set_column(table.schema.get_field_index("text"), "text", column), path)
    examples = worst_examples(read_run(run))
    assert examples and all("broken �" in side.pieces[0].text for example in examples for side in example.sides)


def test_charts_take_every_colour_from_the_page(failing: Path) -> None:
    run = read_run(failing)
    for section in sections(run, PairSeries(run), read_scored(run)):
        for chart in section.charts:
            svg = as_svg(chart)
            assert "style=" not in svg and "#0101" not in svg and "font-family" not in svg
            ElementTree.fromstring(svg)


# --- accuracy in pictures and words -----------------------------------------------------------------------------------


def test_the_first_divergence_names_the_references_own_choice(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(ROOT / "tests" / "golden_runs" / "letter-a", run)
    path = run / "oracles" / "candidate" / "tokens.parquet"
    table = pq.read_table(path)
    other = pq.read_table(run / "oracles" / "baseline" / "tokens.parquet")["ids"].to_pylist()
    choices = [[other[0][0]] * len(ids) for ids in table["ids"].to_pylist()]
    table = table.drop_columns([name for name in ("choices",) if name in table.column_names])
    pq.write_table(table.append_column("choices", pa.array(choices, pa.list_(pa.int32()))), path)
    parting = worst_examples(read_run(run))[0].sides[0].parting
    assert parting and parting.text.strip() == "a" and parting.choice and parting.choice != parting.text
    assert "where the reference has" in page_of(run, tmp_path)


def flipped_run(passing: Path, tmp_path: Path) -> Path:
    run = tmp_path / "run"
    shutil.copytree(passing, run)
    line = int(pq.read_table(run / "oracles" / "candidate" / "tokens.parquet")["line"][0].as_py())
    rows = [
        {
            "item": f"sums-{place}", "task": "sums" if place < 6 else "needles",
            "direction": "gained" if place % 4 == 3 else "lost", "repeat": 0, "pair": 1,
            "line": line if place == 0 else 9_000 + place, "question": "2 + 2 = <b>?</b>", "target": "4",
            "baseline_extracted": "4", "candidate_extracted": "5", "baseline_answer": "It is 4.",
            "candidate_answer": "It is <script>5</script>.", "baseline_fate": "graded", "candidate_fate": "graded",
        }
        for place in range(8)
    ]  # fmt: skip
    (run / "oracles" / "tasks").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), run / "oracles" / "tasks" / "flips.parquet")
    for arm, value in (("candidate", 71.0), ("baseline", 74.0)):
        metric = {"value": value, "unit": "%", "n": 200, "ci_low": value - 6, "ci_high": value + 6}
        apart = {"value": -3.0, "unit": "pt", "n": 200, "ci_low": -5.0, "ci_high": -1.0}
        result = {"oracle": "tasks", "arm": arm, "status": "scored", "metrics": {"score": metric, "score.sums": metric}}
        result["metrics"] |= {"difference": apart}
        (run / "oracles" / arm / "tasks.json").write_text(json.dumps(result))
    return run


def test_flips_are_counted_both_ways_and_shown_side_by_side(passing: Path, tmp_path: Path) -> None:
    run = read_run(flipped_run(passing, tmp_path))
    flips = read_flips(run)
    rows = {row.items[0].shown: [item.shown for item in row.items] for row in tasks_table(run, flips).rows}
    assert rows["all tasks"][5:] == ["-3.00 pt", "-5.00 to -1.00", "6", "2", "200"] and rows["sums"][7:9] == ["5", "1"]
    gallery = flipped(run, flips)
    assert len(gallery.examples) == 5
    assert {example.where.partition(" ")[0] for example in gallery.examples} == {"sums", "needles"}
    assert all("lost by the candidate · expected 4" in example.where for example in gallery.examples)
    assert all([side.arm for side in example.sides] == ["candidate", "baseline"] for example in gallery.examples)
    html = page_of(run.root, tmp_path)
    assert "6 answers right for the baseline and wrong for the candidate, 2 the other way round" in html
    assert "&lt;script&gt;5" in html and "<script>5" not in html


def test_every_item_is_shown_with_both_answers_and_grades_the_flips_first() -> None:
    run = read_run(ROOT / "tests" / "golden_runs" / "tasks")
    graded = pq.read_table(run.root / "oracles" / "candidate" / "tasks.parquet").to_pylist()
    rows = items_table(run).rows
    assert len(rows) == len(graded) == 70
    flips = Counter(row["direction"] for row in read_flips(run))
    assert [row.state for row in rows[: flips.total()]] == ["lost"] * flips["lost"] + ["gained"] * flips["gained"]
    shown = {row.items[0].shown: row for row in rows}
    for one in graded:
        row = shown[one["item"].removeprefix("task/")].items
        assert row[1].shown[:40] == one["target"][:40] and row[2].shown[:40] == one["extracted"][:40]
        assert row[3].value == one["score"]
    assert any(row.items[2].below for row in rows), "the whole answer, where lm-eval took a part out of it"


def test_the_kl_tail_is_drawn_from_what_the_oracle_wrote(passing: Path, tmp_path: Path) -> None:
    assert kl_tail(read_run(passing)) is None
    run = tmp_path / "run"
    shutil.copytree(passing, run)
    shares = {"kld_p50": 0.001, "kld_p90": 0.02, "kld_p99": 0.3, "kld_p99.9": 1.5, "kld_p1": 0.0, "kld_mean": 0.01}
    for arm in ("candidate", "baseline"):
        metrics = {name: {"value": value, "unit": "nats", "n": 900} for name, value in shares.items()}
        result = {"oracle": "logits", "arm": arm, "status": "scored", "metrics": metrics}
        (run / "oracles" / arm / "logits.json").write_text(json.dumps(result))
    chart = kl_tail(read_run(run))
    assert chart and "1.50 nats at the furthest" in chart.alt
    svg = as_svg(chart)
    assert "0.1 % over 1.50 nats" in svg.replace("\u00a0", " ")


# --- comparison -----------------------------------------------------------------------------------------------------


def test_runs_are_ranked_and_differences_named(passing: Path, failing: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(failing, other)
    (other / "environment.json").write_text(json.dumps({"cpu": {"model": "Another CPU", "count": 4}}))
    html = write_report([failing, passing, other], tmp_path / "report.html").read_text()
    assert html.index("1. passing") < html.index("2. failing") < html.index("3. other") or "2. other" in html
    assert "2 different machines" in html
    assert "passing leads" in html
    assert "Another CPU" in html


def test_ticks_say_what_they_are() -> None:
    assert [tick_text(value) for value in (0, 0.00025, 0.0005, 0.25, 20, 15_000)] == [
        "0", "2.5e-4", "5e-4", "0.25", "20", "15k",
    ]  # fmt: skip


def test_a_shift_in_level_is_found_and_noise_is_not() -> None:
    rng = np.random.default_rng(3)
    steady = rng.normal(0.3, 0.01, 24)
    assert change_points(steady) == []
    shifted = steady + np.where(np.arange(24) >= 14, 0.05, 0)
    assert change_points(shifted) == [14]
    assert change_points(np.full(20, 0.3)) == []
    assert change_points(steady[:5]) == []


# --- runs of real engines -------------------------------------------------------------------------------------------

GOLDEN = sorted(path.parent for path in (ROOT / "tests" / "golden_runs").glob("*/plan.yaml"))


@pytest.mark.parametrize("run", GOLDEN, ids=lambda run: run.name)
def test_a_real_run_is_rendered_whole(run: Path, tmp_path: Path) -> None:
    data, html = read_run(run), page_of(run, tmp_path)
    assert data.problems == ()
    assert f'class="verdict {data.status}' in html
    if data.verdict:
        assert data.verdict.sentence[1:60].replace("'", "&#39;") in html
        cases = ElementTree.fromstring(junit_xml(run)).findall(".//testcase")
        judged = [case for case in cases if case.get("classname") != "enginegate.not-gateable"]
        assert len(judged) == len(data.checks) + 1
    assert "/root/" not in html and "/work/" not in html


def test_the_published_example_is_whole_and_says_what_the_runs_say() -> None:
    for name, runs in (("report", ("honest", "fast-but-wrong", "letter-a")), ("fast-but-wrong", ("fast-but-wrong",))):
        page = ROOT / "docs" / "example" / f"{name}.html"
        html = page.read_text(encoding="utf-8")
        assert page.stat().st_size < 1_500_000 and html.rstrip().endswith("</html>")
        assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", html) and "/root/" not in html
        for run in runs:
            assert read_run(ROOT / "tests" / "golden_runs" / run).status in html and run in html
    assert "where the reference has" in html


def test_the_letter_a_is_shown_as_what_it_is() -> None:
    run = read_run(ROOT / "tests" / "golden_runs" / "letter-a")
    examples = worst_examples(run)
    assert len(examples) == 5
    candidate, baseline = examples[0].sides
    assert set("".join(piece.text for piece in candidate.pieces).replace("…", "").split()) == {"a"}
    assert candidate.pieces[0].margin and candidate.pieces[0].margin > 4
    assert len("".join(piece.text for piece in baseline.pieces).split()) > 8
    assert examples[0].prompt
    scored = read_scored(run)
    assert scored["candidate"].by_position()[0][1].nats > 100 * scored["baseline"].total().nats


def test_real_runs_compared(tmp_path: Path) -> None:
    html = write_report(GOLDEN, tmp_path / "report.html").read_text(encoding="utf-8")
    for run in GOLDEN:
        assert run.name in html
    assert html.index(". letter-a") > html.index(". honest")
