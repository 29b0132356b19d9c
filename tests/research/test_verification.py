"""`pathaware results verify`: numbers against values of tasks, and a training again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pathaware.cli import main
from pathaware.core.errors import UsageError
from pathaware.training.provenance import encode_values, task_values
from pathaware_research import verification
from pathaware_research.experiments import RunStore
from pathaware_research.paper.tables import sine_experiment

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with the record of a short run."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("made")
    settings = {"problem": {"points": 10}, "method": {"steps": 2}, "training": {"tasks": 2}}
    run = sine_experiment(5, "pamela").with_settings(settings).run(0, 5)
    RunStore(folder, tasks=20).train([run])
    return folder / "results"


@pytest.fixture
def folder(made, tmp_path) -> Path:
    (path,) = made.glob("*.json")
    (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def change(folder: Path, edit) -> None:
    (path,) = folder.glob("*.json")
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit:
        main(["results", "verify", *arguments])
    return int(exit.value.code or 0)


def test_a_record_is_correct_and_its_training_gives_the_same_bits(folder, capsys):
    assert command(str(folder), "--retrain") == 0
    shown = capsys.readouterr().out
    assert "trained again, equal to the last bit" in shown
    assert "1 records checked, 0 mismatches" in shown


@pytest.mark.parametrize("key", ["mse", "mse_ci95", "mse_median", "mse_max", "tasks"])
def test_a_number_that_does_not_follow_from_the_tasks_is_found(folder, capsys, key):
    change(folder, lambda record: record["result"].update({key: record["result"][key] * 1.001 + 1}))
    assert command(str(folder)) == 1
    assert f"MISMATCH sine-k5-pamela-s10-5-seed0.json: {key} is" in capsys.readouterr().out


def test_a_median_of_an_even_number_is_the_mean_of_the_two_in_the_middle(folder):
    """Earlier records hold the lower one, and are accepted."""
    (path,) = folder.glob("*.json")
    record = json.loads(path.read_text())
    low, high = task_values(record).double().sort().values[9:11].tolist()
    assert record["result"]["mse_median"] == pytest.approx((low + high) / 2, rel=1e-6)
    change(folder, lambda record: record["result"].update(mse_median=low))
    assert verification.verify(folder).mismatches == []
    change(folder, lambda record: record["result"].update(mse_median=high))
    assert "mse_median is" in verification.verify(folder).mismatches[0]


def test_a_record_without_values_is_listed(folder, capsys):
    change(folder, lambda record: record.pop("task_values"))
    assert command(str(folder), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["without_values"] == ["sine-k5-pamela-s10-5-seed0.json"]
    assert told["checked"] == []


def test_files_of_other_measurements_are_counted(folder, capsys):
    (folder / "times.json").write_text("{}")
    assert command(str(folder)) == 0
    shown = capsys.readouterr().out
    assert "1 files without values of tasks, not checked: . 1" in shown
    assert "1 trainings can be repeated here" in shown


def test_values_that_cannot_be_read_are_a_mismatch(folder):
    change(folder, lambda record: record.update(task_values="bm90IHpsaWI="))
    assert "task_values cannot be read" in verification.verify(folder).mismatches[0]


def test_other_bits_are_found(folder, capsys):
    change(folder, lambda record: record.update(tensors_sha256="0" * 64))
    assert command(str(folder), "--retrain") == 1
    assert "the trained tensors differ" in capsys.readouterr().out


def test_other_values_of_tasks_are_found(folder):
    _, record = verification.choose(folder)
    record["config"]["training"]["rate"] *= 2
    assert verification.retrain(record).mismatches[1:] == ["values differ for 20 of 20 tasks"]


def test_an_evaluation_is_repeated_with_its_views_and_refinement(folder, monkeypatch):
    _, record = verification.choose(folder)
    record["result"].update(views="mirror", refine="sinkhorn")
    asked = {}
    usual = verification.evaluate

    def noting(learner, problem, *, views, refine, **options):
        asked.update(views=views, refine=refine)
        return usual(learner, problem, **options)

    monkeypatch.setattr(verification, "evaluate", noting)
    verification.retrain(record)
    assert asked == {"views": "mirror", "refine": "sinkhorn"}


def test_the_mean_of_several_checkpoints_is_not_trained_again(folder):
    _, record = verification.choose(folder)
    record["result"]["snapshots"] = 5
    assert verification.obstacle(record) == "it is of the mean of several checkpoints"


def test_values_rounded_by_another_version_are_told(folder, capsys):
    """The order of sums in evaluation may change from version to version, trained tensors may not."""
    (path,) = folder.glob("*.json")
    record = json.loads(path.read_text())
    values = task_values(record) * (1 + 3e-7)
    record["task_values"] = encode_values(values)
    path.write_text(json.dumps(record))
    again = verification.retrain(record)
    assert not again.mismatches
    assert again.differing > 0
    assert 1e-7 < again.rounding < 5e-7
    assert command(str(folder), "--retrain") == 0
    assert "tensors equal to the last bit, errors of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda r: r.pop("tensors_sha256"), "it has no digest"),
        (lambda r: r["trained_with"][0].update(device="cuda"), "by one process on a CPU"),
        (
            lambda r: r["trained_with"][0]["environment"].update(torch="1.0"),
            "it was made with torch 1.0, here",
        ),
        (lambda r: r["trained_with"][0]["environment"].update(cpu="abacus"), "it was made with cpu abacus"),
        (lambda r: r.update(training_seconds=1e6), "its training took more than 300 seconds"),
        (lambda r: r["identity"].update(method_version=0), "it is of version 0 of pamela"),
        (lambda r: r["trained_with"][0].pop("numerics"), "its order of sums is of version unknown"),
    ],
)
def test_what_cannot_be_trained_again_says_why(folder, capsys, edit, reason):
    change(folder, edit)
    assert command(str(folder), "--retrain") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --retrain: no record can be trained again: ")
    assert reason in error


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"folder: .*nowhere is not a folder"):
        verification.verify(tmp_path / "nowhere")


def test_the_numbers_of_all_our_records_follow_from_their_tasks():
    found = verification.verify(ROOT / "results")
    assert len(found.checked) >= 20
    assert not found.mismatches
