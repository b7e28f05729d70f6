"""Small parts of a report that a reader would trip over: rounding, steps, labels, what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reports import compare, compare_charts, wording
from reports.latencies import steps
from reports.page import checklist, reproduce, validity_line
from reports.run_data import read_run
from reports.tables import flat_table, signals_table

GOLDEN = Path(__file__).parent / "golden_runs"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.9996, "1.00"),
        (9.996, "10.0"),
        (99.96, "100"),
        (0.00123456, "0.00123"),
        (1234.5, "1,234"),
        (9.9996e-5, "1.00e-04"),
    ],
)
def test_a_number_has_three_digits_after_rounding(value: float, shown: str) -> None:
    assert wording.number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0041, "0.0041×"), (0.95, "0.95×"), (1.204, "1.20×"), (266.4, "266×"), (0.0, "0.00×")]
)
def test_a_small_ratio_is_not_shown_as_zero(value: float, shown: str) -> None:
    assert wording.ratio(value) == shown


def test_a_distribution_rises_by_the_share_of_each_request_and_leaves_failures_out() -> None:
    xs, shares = steps(np.array([1.0, 2.0, 4.0, np.inf]))
    assert xs.tolist() == [1.0, 1.0, 2.0, 4.0]
    assert shares.tolist() == [0.0, 0.25, 0.5, 0.75]
    xs, shares = steps(np.arange(1.0, 1001.0))
    assert len(xs) <= 121
    assert (xs[-1], shares[-1]) == (1000.0, 1.0)


def test_what_is_empty_has_no_row() -> None:
    assert flat_table("hashes", "SHA-256", value={}).rows == ()


def test_a_sweep_says_how_to_repeat_it() -> None:
    assert reproduce(read_run(GOLDEN / "sweep")) == ("enginegate sweep sweep/plan.yaml",)


def test_signals_carry_their_units() -> None:
    heads = [column.label for column in signals_table(read_run(GOLDEN / "h200-graphs-vs-eager")).columns]
    assert "GPU utilisation, %" in heads
    assert "Credit lag p99, ms" in heads
    assert len(set(heads)) == len(heads)


def test_the_validity_line_says_in_how_many_cells() -> None:
    run = read_run(GOLDEN / "h200-graphs-vs-eager")
    assert validity_line(checklist(run.of_family("validity")))[1] == "Not fit to be judged: steady (1 of 3 cells)."


def test_one_profile_alone_has_the_width_of_the_page() -> None:
    runs = compare.ranked([read_run(GOLDEN / name) for name in ("honest", "letter-a")])
    (pareto,) = [section for section in compare.sections(runs) if section.name == "pareto"]
    assert [chart.only for chart in pareto.charts] == ["wide", "phone"]


def test_names_beside_lines_are_kept_apart() -> None:
    assert compare_charts.apart([50.0, 10.0, 52.0, 12.0], 15) == [50.0, 10.0, 65.0, 25.0]
