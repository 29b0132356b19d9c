"""The records of `results/`: packed and read back without a change, and packed records are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.sweep.run_store import PlannedRun
from pathaware.training.provenance import task_values
from pathaware_research import records, verification
from pathaware_research.experiments import RunStore
from pathaware_research.paper.tables import sine_experiment
from pathaware_research.records import Records, RecordStore, read_results

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def planned(tmp_path) -> PlannedRun:
    """A short run, whose record is a file in `tmp_path / "results"`."""
    settings = {"method": {"steps": 1}, "training": {"tasks": 2}}
    run = sine_experiment(5, "maml").with_settings(settings).run(0, 2)
    RunStore(tmp_path, tasks=10).train([run])
    return run


def test_a_packed_record_is_the_one_that_was_written(planned, tmp_path):
    path = tmp_path / "results" / f"{planned.name}.json"
    written = json.loads(path.read_text())
    results = tmp_path / "packed"
    assert records.pack(path.parent, results) == {"tables-sine": [planned.name]}
    assert not path.exists()
    found = dict(Records("tables-sine", results)[planned.name])
    assert torch.equal(task_values(found), task_values(written))
    assert {**found, "task_values": written["task_values"]} == written
    assert verification.verify(results).checked == [f"runs/tables-sine.jsonl#{planned.name}"]


def test_accuracies_are_stored_as_counts_if_these_give_the_same_bits(planned, tmp_path):
    record = json.loads((tmp_path / "results" / f"{planned.name}.json").read_text())
    record["config"]["problem"] = {"name": "glyphs", "ways": 5, "queries": 15}
    accuracies = torch.arange(76) / 75
    for name, values in {"counts": accuracies, "others": accuracies + 1e-7}.items():
        records.write(name, {"run": {**record, "task_values": values}}, tmp_path)
        assert torch.equal(Records(name, tmp_path)["run"]["task_values"], values)
    counts, others = (
        (tmp_path / f"tasks/{name}.safetensors").stat().st_size for name in ("counts", "others")
    )
    assert others - counts > 200


def test_packing_replaces_a_record_of_the_same_name_and_keeps_the_others(planned, tmp_path):
    path = tmp_path / "results" / f"{planned.name}.json"
    record = json.loads(path.read_text())
    records.pack(path.parent, tmp_path)
    for name, seconds in ((planned.name, 1.5), ("sine-k5-other-2-seed0", 2.5)):
        (path.parent / f"{name}.json").write_text(json.dumps({**record, "training_seconds": seconds}))
    (path.parent / "times.json").write_text("{}")
    records.main(["pack", str(path.parent), "--results", str(tmp_path)])
    found = Records("tables-sine", tmp_path)
    assert {name: each["training_seconds"] for name, each in found.items()} == {
        planned.name: 1.5,
        "sine-k5-other-2-seed0": 2.5,
    }
    assert [each.name for each in path.parent.iterdir()] == ["times.json"]


def test_a_packed_run_is_not_trained_again(planned, tmp_path):
    store = RecordStore(tmp_path, tasks=10)
    records.pack(store.results_folder, store.results_folder)
    assert store.result(planned) is not None
    assert RunStore(tmp_path, tasks=10).result(planned) is None
    assert len(store.results().matching(planned.config)) == 1
    assert len(read_results(store.results_folder, ["sine-k5-maml"]).found) == 1
    assert not read_results(store.results_folder, ["sine-k5"]).found


def test_a_name_that_belongs_to_no_study_needs_one(planned, tmp_path):
    path = tmp_path / "results" / f"{planned.name}.json"
    path.rename(path.with_name("mine.json"))
    with pytest.raises(UsageError, match="no study has runs with names like mine"):
        records.pack(path.parent, tmp_path)
    assert records.pack(path.parent, tmp_path, "own") == {"own": ["mine"]}


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/recipe.jsonl").write_text("{")
    with pytest.raises(UsageError, match=r"recipe\.jsonl cannot be read"):
        verification.verify(tmp_path)


def test_our_records_are_packed_and_in_the_studies_of_their_names():
    assert not list(RESULTS.glob("*.json"))
    assert sum(path.is_file() for path in RESULTS.rglob("*")) <= 80
    for study, name, record in records.read_records(RESULTS, apart=True):
        assert records.study_of(name, record) == study
