"""Rows of a table that are compared differ in one thing only, and rows have the names of what they run."""

from __future__ import annotations

from pathlib import Path

from pathaware_research.experiments import Results, experiment_key
from pathaware_research.paper.method_table import render
from pathaware_research.paper.tables import STEPPED, STEPS, steps_table, table1, table2, table4
from pathaware_research.records import read_results
from pathaware_research.studies import steps

ROOT = Path(__file__).parents[3]


def everywhere(data: str) -> bool:
    return True


def test_all_preconditioners_of_table_4_have_one_granularity():
    cells = [cell for row in table4("miniimagenet", everywhere).rows for cell in row.cells.values()]
    settings = [cell.experiment.config().method_settings for cell in cells]
    assert {s["q_granularity"] for s in settings if "q_granularity" in s} == {"filter"}
    spec = table4("miniimagenet")
    for column in spec.columns:
        rows = {row.key: row.cells[column].experiment.config().method_settings for row in spec.rows}
        assert {**rows["q0-multiple"], "steps": 1} == rows["q0-single"]
        assert {**rows["q"], "q": "shared"} == rows["q0-multiple"]


def test_no_row_of_the_paper_augments_tiered_image_net():
    for row in table2(everywhere).rows:
        for column, cell in row.cells.items():
            assert cell.experiment.config().problem.augment == ("tiered" not in column), row.label


def test_rows_of_the_number_of_steps_differ_in_it_alone_and_five_steps_are_a_row_of_table_1():
    spec = steps_table("miniimagenet", everywhere)
    for column, method in zip(spec.columns, STEPPED, strict=True):
        configs = [row.cells[column].experiment.config() for row in spec.rows]
        assert [config.method_settings["steps"] for config in configs] == list(STEPS)
        same = [{**config.method_settings, "steps": 0, "skip": 0} for config in configs]
        assert all(each == same[0] for each in same)
        five = configs[STEPS.index(5)]
        row = next(row for row in table1(everywhere).rows if row.key == method)
        assert experiment_key(row.cells["miniImageNet 5-shot"].experiment.config()) == experiment_key(five)


def test_a_table_without_printed_numbers_has_no_column_for_them():
    assert "the paper" not in render(steps_table("miniimagenet", everywhere), Results([])).header
    assert "the paper" in render(table4("miniimagenet", everywhere), Results([])).header


def test_a_result_of_another_level_than_its_column_s_is_marked():
    names = [f"miniimagenet-{method}-1shot" for method in ("metal", "pamela")]
    table = render(table1(everywhere), read_results(ROOT / "results", names))
    assert table.header[1] == "miniImageNet 1-shot, batch"
    marked = {row.cells[0]: row.cells[1].endswith("(joint)") for row in table.rows if "±" in row.cells[1]}
    assert marked == {"MeTAL": True, "PAMELA, Q learned directly": False}


def test_the_study_of_steps_trains_every_n_and_w_once_for_each_seed():
    keys = [(experiment_key(run.config), run.config.training.seed) for run in steps.RUNS]
    assert len(set(keys)) == len(keys) == steps.SEEDS * (2 * len(STEPS) + len(steps.INTERVALS) - 1)
