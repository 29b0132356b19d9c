"""Rows of a table that are compared differ in one thing only, and rows have the names of what they run."""

from __future__ import annotations

from pathaware.experiments.paper.tables import table1, table2, table4


def everywhere(data: str) -> bool:
    return True


def test_all_preconditioners_of_table_4_have_one_granularity():
    cells = [cell for row in table4("miniimagenet", everywhere).rows for cell in row.cells.values()]
    settings = [cell.experiment.config().method_settings for cell in cells]
    assert {s["q_granularity"] for s in settings if "q_granularity" in s} == {"filter"}
    rows = {
        row.key: row.cells["miniImageNet 5-shot"].experiment.config() for row in table4("miniimagenet").rows
    }
    single, multiple, per_step = (rows[key].method_settings for key in ("q0-single", "q0-multiple", "q"))
    assert {**multiple, "steps": 1} == single
    assert {**per_step, "q": "shared"} == multiple


def test_the_row_of_hessian_free_imaml_runs_it():
    rows = {row.label: row for row in table1(everywhere).rows}
    assert {cell.experiment.config().method for cell in rows["iMAML-HF"].cells.values()} == {"imaml-hf"}


def test_no_row_of_the_paper_augments_tiered_image_net():
    for row in table2(everywhere).rows:
        for column, cell in row.cells.items():
            assert cell.experiment.config().problem.augment == ("tiered" not in column), row.label
