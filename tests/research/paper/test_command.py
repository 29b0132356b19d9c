"""`pathaware reproduce` from the command line, with trainings of a few iterations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from pathaware.data.importing import PartialStore
from pathaware.data.pixels import ImageFormat
from pathaware.sweep import worker_pool
from pathaware.training import provenance
from pathaware.training.provenance import encode_values
from pathaware.training.run_files import FolderLock
from pathaware_research.experiments import Results, RunStore
from pathaware_research.paper import figures, tables, targets
from pathaware_research.paper.method_table import render
from pathaware_research.paper.tables import full_length, further, table1, table2, table3, table4
from pathaware_research.paper.time_estimate import RunPlanner, TimeEstimate
from pathaware_research.records import Records

RESULTS = Path(__file__).parents[3] / "results"
TINY = ("--tasks", "3", "--set", "training.tasks=2", "--set", "method.steps=2")


def test_a_table_is_trained_shown_and_written_in_every_form(reproduce, tmp_path):
    code, shown, told = reproduce(
        "table3", "--only", "k5-maml", "--only", "k5-mt-net", "--iterations", "3", *TINY, out=tmp_path
    )
    assert code == 0
    assert "table3: 2 runs to train, about" in told
    assert "| K = 5, MAML |" in shown
    assert "All rows: 3 of 40,000 iterations, fp32" in shown
    assert "1.13 ± 0.18 | 1 |" in shown
    assert "| K = 5, MT-Net |" in shown
    assert "K = 10" not in shown
    assert {p.suffix for p in tmp_path.glob("table3.*")} == {".md", ".tex", ".html"}
    code, again, told = reproduce(
        "table3", "--only", "k5-maml", "--only", "k5-mt-net", "--iterations", "3", *TINY, out=tmp_path
    )
    assert code == 0
    assert "table3: nothing to train" in told
    assert again == shown


def test_progress_counts_cells_and_columns_can_be_chosen(reproduce, tmp_path):
    options = ("table3", "--only", "k5-maml", "--only", "k5-meta-sgd", "--seeds", "2", "--iterations", "2")
    code, _, told = reproduce(*options, *TINY, "--columns", "MSE", out=tmp_path)
    assert code == 0
    lines = [line for line in told.splitlines() if ": done" in line]
    done = [line.split("; ")[1].partition(",")[0] for line in lines]
    assert done == [f"{n} of 2 cells of table3" for n in (0, 0, 1, 2)]  # first seeds first
    assert [" left" in line for line in lines] == [True, True, True, False]


def test_workers_train_the_same_runs_side_by_side(reproduce, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pool, "REPORT", 0.5)
    options = ("table3", "--only", "k5-maml", "--only", "k5-meta-sgd", "--seeds", "2", "--iterations", "3")
    code, alone, _ = reproduce(*options, *TINY, out=tmp_path / "alone")
    assert code == 0
    code, shown, told = reproduce(*options, *TINY, "--workers", "2", out=tmp_path / "workers")
    assert code == 0
    assert shown == alone
    assert "2 of 2 cells of table3" in told
    assert re.search(r"trained: sine-k5-\S+-3-seed0 \d+ %, sine-k5-\S+-3-seed0 \d+ %; about .+ left", told)
    for record in (tmp_path / "alone/results").glob("*.json"):
        other = tmp_path / "workers/results" / record.name
        assert json.loads(other.read_text())["result"] == json.loads(record.read_text())["result"]
    assert {path.stem for path in (tmp_path / "workers/logs").iterdir()} == {
        path.stem for path in (tmp_path / "workers/results").iterdir()
    }


def test_workers_train_the_runs_of_several_targets_in_one_pool(reproduce, tmp_path, monkeypatch):
    pools = []

    def train(store, runs, workers, say, on_done, time_left):
        pools.append([run.name for run in runs])
        store.train(runs, 1, on_done)

    monkeypatch.setattr(targets, "train_in_workers", train)
    monkeypatch.setattr(tables, "SINE_MSE", {10: tables.SINE_MSE[10]})
    options = ("--iterations", "3", *TINY, "--workers", "2")
    code, _, told = reproduce("fig4", "table3", "fig5", *options, out=tmp_path)
    assert code == 0
    assert len(pools) == 1
    assert sorted(pools[0]) == sorted(set(pools[0]))
    assert len(pools[0]) == 5  # the cells of Table 3 for K = 10; the figures share three of them
    assert "fig4 and table3 and fig5: 5 runs to train" in told
    assert all(f"{target}: nothing to train" in told for target in ("fig4", "table3", "fig5"))
    assert (tmp_path / "fig5.png").exists()


def test_workers_begin_with_the_longest_runs(reproduce, tmp_path, monkeypatch):
    pools = []
    monkeypatch.setattr(targets, "train_in_workers", lambda store, runs, *rest: pools.append(runs))

    def estimate(self, config):
        return TimeEstimate(10.0 * config.method_settings["steps"] + (config.method == "maml"), 0.0)

    monkeypatch.setattr(RunPlanner, "estimate", estimate)
    rows = ("--only", "n1", "--only", "n5", "--only", "n20")
    options = ("steps", "--data", "glyphs", "--iterations", "3", *rows)
    assert reproduce(*options, "--workers", "2", out=tmp_path)[0] == 0
    assert reproduce(*options, "--workers", "2", "--budget", "10h", out=tmp_path)[0] == 0
    longest_first, informative_first = (
        [run.config.method_settings["steps"] for run in pool] for pool in pools
    )
    assert longest_first == [20] * 3 + [5] * 3 + [1] * 3
    assert informative_first == longest_first[::-1]


def test_records_name_the_commit_at_the_beginning(reproduce, tmp_path, monkeypatch):
    commits = iter(["first", "second"])
    monkeypatch.setattr(provenance, "_git", lambda *words: next(commits) if words[0] == "rev-parse" else "")
    provenance.revision.cache_clear()
    try:
        code, _, _ = reproduce("table3", "--only", "k5-maml", "--no-train", out=tmp_path)
        assert code == 0
        assert next(commits) == "second"  # the first was taken before anything was made
        assert provenance.revision()["commit"] == "first"
    finally:
        provenance.revision.cache_clear()


def test_an_interrupt_says_how_to_resume(reproduce, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(worker_pool.WorkerPool, "run", interrupted)
    options = ("table3", "--only", "k5-maml", "--seeds", "2", "--iterations", "3", *TINY, "--workers", "2")
    code, _, told = reproduce(*options, out=tmp_path)
    assert code == 130
    assert "interrupted; run the same command to resume" in told
    FolderLock(tmp_path, "").release()  # the folder is free


def test_workers_refuse_what_they_cannot_share(reproduce, tmp_path):
    options = ("table3", "--only", "k5-maml", "--seeds", "2", "--iterations", "3", *TINY, "--workers", "2")
    code, _, told = reproduce(*options, "--together", "2", out=tmp_path)
    assert code == 2
    assert "--workers: each worker trains one run; leave out --together" in told
    lock = FolderLock(tmp_path, "")
    try:
        code, _, told = reproduce(*options, out=tmp_path)
    finally:
        lock.release()
    assert code == 2
    assert "--out: other workers are training in" in told


def test_a_budget_with_iterations_is_for_the_most_informative_cells(reproduce, tmp_path, monkeypatch):
    monkeypatch.setattr(RunPlanner, "estimate", lambda self, config: TimeEstimate(10.0, 0.0))
    options = ("table3", "--only", "k5-mt-net", "--only", "k5-maml", "--seeds", "2", "--iterations", "2")
    code, shown, told = reproduce(*options, *TINY, "--budget", "25s", out=tmp_path)
    assert code == 0
    assert "table3: 2 runs to train, about 20 s if one after another; 2 more do not fit" in told
    names = sorted(path.name for path in (tmp_path / "results").glob("*.json"))
    assert names == ["sine-k5-maml-2-seed0.json", "sine-k5-mt-net-2-seed0.json"]
    assert "All rows: 2 of 40,000 iterations" in shown


def test_the_cells_that_the_papers_claims_are_about_come_first():
    experiments = table1(lambda data: True).available()
    methods = [each.tables["method"]["name"] for each in experiments]
    assert set(methods[:6]) == {"maml", "meta-sgd", "pamela"}
    assert methods.index("maml++") < methods.index("anil")  # the paper prints nothing for ANIL
    assert len(experiments) == len(table1(lambda data: True).experiments())


@pytest.mark.parametrize("name", ["CIFAR-FS 5-shot", "cifar-fs-5shot"])
def test_a_column_is_chosen_by_its_title_or_key(reproduce, tmp_path, name):
    code, shown, _ = reproduce("table2", "--columns", name, "--no-train", out=tmp_path)
    assert code == 0
    header = next(line for line in shown.splitlines() if line.startswith("| method"))
    assert [cell.strip() for cell in header.strip("| ").split("|")] == [
        "method",
        "CIFAR-FS 5-shot, batch",
        "the paper",
        "training",
    ]


@pytest.mark.parametrize("target", ["table2", "methods"])
def test_a_table_without_its_data_names_the_import_and_fails(reproduce, tmp_path, monkeypatch, target):
    monkeypatch.setenv("PATHAWARE_DATA", str(tmp_path / "empty"))
    code, shown, told = reproduce(target, out=tmp_path / "out")
    assert code == 1
    assert "not run: data set not imported" in shown
    name = {"table2": "cifar-fs", "methods": "miniimagenet"}[target]
    assert f"{name} is not imported; import it with: pathaware data import {name} --from FOLDER\n" in told
    code, _, told = reproduce(target, "--no-train", out=tmp_path / "out")
    assert (code, "import it with" in told) == (0, True)


def test_figures_of_waves_are_drawn_from_their_runs(reproduce, tmp_path):
    code, _, told = reproduce("fig4", "fig5", "--iterations", "2", *TINY, out=tmp_path)
    assert code == 0
    assert "fig4: 3 runs to train" in told
    assert "fig5: nothing to train" in told  # it shares them
    for name in ("fig4.png", "fig4.svg", "fig5.png", "fig5.svg"):
        assert (tmp_path / name).stat().st_size > 1000
    steps = json.loads((tmp_path / "results" / "fig5-sine-k10.json").read_text())["steps"]
    assert set(steps) == {"pamela", "maml"}
    for each in steps.values():
        assert each["tasks"] == 100
        assert len(each["mean"]) == 3  # before adaptation and after two steps
        assert each["q05"] < each["q25"] < each["q75"] < each["q95"]


def test_the_gradients_of_section_three_are_measured_and_kept(reproduce, tmp_path, monkeypatch):
    whole = figures.with_constant_skips
    monkeypatch.setattr(
        figures, "with_constant_skips", lambda *a, **o: whole(*a, **{**o, "steps": 3, "tasks": 4})
    )
    code, _, _ = reproduce("gradients", "--iterations", "2", *TINY, out=tmp_path)
    assert code == 0
    assert (tmp_path / "gradients-untrained.png").exists()
    assert (tmp_path / "results" / "gradients-sine-k10.json").exists()


def test_section_three_is_measured_on_images_too(tmp_path, monkeypatch):
    whole = figures.with_constant_skips
    monkeypatch.setattr(figures, "with_constant_skips", lambda *a, **o: whole(*a, **{**o, "steps": 2}))
    monkeypatch.setattr(figures, "IMAGE_TASKS", 2)
    figure, store = figures.gradients_conv4("glyphs"), RunStore(tmp_path, tasks=2)
    small = {
        "problem": {"width": 4, "shots": 1},
        "method": {"steps": 3},
        "training": {"tasks": 2, "validate": 0, "histograms": 0},
    }
    planned = [each.with_settings(small).run(0, 1) for each in figure.experiments]
    store.train(planned)
    drawn = figure.draw([store.open(each) for each in planned], store.results_folder)
    views = ("untrained", "start-of-pamela", "trained")
    assert [name for name, _ in drawn] == [f"gradients-conv4-{view}" for view in views]
    record = json.loads((store.results_folder / "gradients-glyphs-5way-1shot.json").read_text())
    labels = [each["label"] for each in record["flow"]["trained"]]
    assert labels == ["pamela", "pamela, P set to 0", "maml"]
    assert {name: each["iterations"] for name, each in record["runs"].items()} == {"pamela": 1, "maml": 1}


def test_tiered_image_net_runs_on_a_stand_in_and_is_said_to_be_missing_without(
    reproduce, tmp_path, monkeypatch
):
    monkeypatch.setenv("PATHAWARE_DATA", str(tmp_path / "data"))
    empty = render(table2(), Results([]))
    cells = next(row.cells for row in empty.rows if row.cells[0] == "PAMELA, speed 1")
    missing = "not run: data set not imported"
    assert cells[5:9] == (missing, "54.81 ± 0.88", missing, "74.39 ± 0.71")
    form = ImageFormat(16, 3)
    store = PartialStore(tmp_path / "data" / "tieredimagenet", form, "stand-in")
    random = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        for i in range(5):
            store.add(f"{split} {i}", split, random.integers(0, 256, (6, 3, 16, 16), dtype=np.uint8))
    store.publish("noise")
    settings = (
        "problem.width=4",
        "problem.queries=1",
        "training.validation_tasks=2",
        "training.histograms=1",
    )
    options = [part for text in settings for part in ("--set", text)]
    code, shown, _ = reproduce(
        "table2", "--only", "pamela", "--iterations", "1", *TINY, *options, out=tmp_path / "out"
    )
    assert code == 0
    row = next(line for line in shown.splitlines() if line.startswith("| PAMELA"))
    assert row.count("not run: data set not imported") == 2  # CIFAR-FS is not here
    assert "1 of 60,000 iterations" in row


def test_every_row_of_the_papers_tables_is_there():
    for table in (table1(), table2()):
        groups = [row.group for row in table.rows]
        assert (groups.count("others"), groups.count("ours")) == (11, 2)
        assert groups.count("beyond") == 9
    assert further().columns == [f"{data} {n}-shot" for data in ("FC100", "Omniglot") for n in (1, 5)]
    assert {row.key for row in further().rows} >= {"maml", "meta-sgd", "pamela"}
    assert [row.key for row in table4("cifar-fs").rows][-1] == "qp4"
    for spec in (table1(), table2(), table3()):
        assert all(each.config().training.iterations >= 40_000 for each in spec.experiments())


def test_runs_of_the_papers_length_have_a_table_of_their_own(tmp_path):
    """They do not replace the rows of another table, whose methods have other lengths."""
    for method in ("maml", "pamela"):
        name = f"cifar-fs-{method}-5shot-12000-seed0"
        record = {**Records("tables-cifar-fs", RESULTS)[name]}
        record["task_values"] = encode_values(record["task_values"])
        (tmp_path / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
    record["config"]["training"]["iterations"] = 60_000
    record["result"]["accuracy"] = 0.9
    (tmp_path / "longer.json").write_text(json.dumps(record), encoding="utf-8")
    shown = {}
    for spec in (table2, full_length):
        table = render(spec(lambda data: True), Results.read(tmp_path))
        row = next(row for row in table.rows if row.cells[0] == "PAMELA, Q learned directly")
        shown[spec] = row.cells[table.header.index("CIFAR-FS 5-shot, batch")]
    assert shown[table2].startswith("76.")
    assert shown[full_length].startswith("90.00")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["full", "--iterations", "5"], "--iterations: the runs of full have 60,000"),
        (["table9"], "TARGET: 'table9' must be one of table1"),
        (["table3", "--only", "k7-maml"], "--only: 'k7-maml' is not a row of table3; it has k5-maml"),
        (["fig4", "--only", "maml"], "--only: fig4 has no rows"),
        (["table3", "--budget", "soon"], "--budget: 'soon' is not a duration"),
        (
            ["table3", "--only", "k5-maml", "--budget", "0s", "--iterations", "5", *TINY],
            "--budget: not enough for any run of this length; at least",
        ),
        (["fig4", "--no-train"], "fig4: none of its runs has been trained"),
        (["fig6", "--data", "nowhere"], "--data: 'nowhere' must be one of glyphs, miniimagenet, cifar-fs"),
        (["table4", "--data", "nowhere", "--no-train"], "--data: 'nowhere' must be one of glyphs"),
        (["table3", "fig4", "--data", "nowhere"], "--data: 'nowhere' must be one of glyphs"),
        (["table2", "--columns", "mse"], "--columns: 'mse' is not a column of table2; it has cifar-fs-1shot"),
        (["fig4", "--columns", "mse"], "--columns: fig4 has no columns"),
        (["table3", "--set", "training.rate=-1", "--only", "k5-maml"], "rate: -1"),
    ],
)
def test_what_cannot_be_made_is_one_line_and_exit_code_two(reproduce, tmp_path, arguments, message):
    code, _, told = reproduce(*arguments, out=tmp_path / "out")
    assert code == 2
    assert message in told.splitlines()[-1]


@pytest.mark.parametrize("name", ["file", "file/in", "x" * 300])
def test_a_folder_that_cannot_be_made_is_one_line_and_exit_code_two(reproduce, tmp_path, name):
    (tmp_path / "file").touch()
    code, _, told = reproduce("table3", "--no-train", out=tmp_path / name)
    assert code == 2
    assert told.startswith("error: --out: ")
    assert told.count("\n") == 1


def test_of_several_targets_those_that_can_be_made_are_made(reproduce, tmp_path):
    code, shown, told = reproduce("fig4", "table3", "--no-train", out=tmp_path)
    assert code == 0
    assert "fig4 left out" in told
    assert "| K = 20, PAMELA, speed 10 | not run yet |" in shown
