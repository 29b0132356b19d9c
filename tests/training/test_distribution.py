"""Several processes train what one trains."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore

from pathaware.core.episodes import share_of
from pathaware.core.errors import UsageError
from pathaware.training.distributed import ALONE, agree_on_attempt, process_group
from pathaware.training.run_folder import Run
from pathaware.training.train import train
from tests.conftest import distance
from tests.training.launching import launch
from tests.training.one_of_several import CASES, config


@pytest.fixture(scope="module")
def worlds(tmp_path_factory) -> dict[int, list[dict]]:
    """What each process of worlds of 1, 2 and 3 has found."""
    folder = tmp_path_factory.mktemp("worlds")
    launch("tests.training.one_of_several", str(folder), "1", "2", "3", cwd=folder)
    return {
        size: [torch.load(folder / f"{size}-{rank}.pt", weights_only=False) for rank in range(size)]
        for size in (1, 2, 3)
    }


SEVERAL = pytest.mark.parametrize("size", [2, 3])
DOUBLE = [name for name, settings in CASES.items() if settings.training.dtype == "float64"]


@SEVERAL
@pytest.mark.parametrize("case", DOUBLE)
def test_the_number_of_processes_changes_no_parameter(worlds, case, size):
    alone = worlds[1][0][case]["parameters"]
    for process in worlds[size]:
        assert distance(process[case]["parameters"], alone) < 1e-10


@SEVERAL
def test_images_are_shared_out_like_waves(worlds, size):
    for process in worlds[size]:
        assert distance(process["images"], worlds[1][0]["images"]) < 1e-10


@SEVERAL
@pytest.mark.parametrize("case", CASES)
def test_all_processes_have_the_same_bits(worlds, case, size):
    first, *others = [process[case] for process in worlds[size]]
    assert all(torch.equal(other["parameters"], first["parameters"]) for other in others)
    assert all(repr(other["reports"]) == repr(first["reports"]) for other in others)


@SEVERAL
@pytest.mark.parametrize("case", DOUBLE)
def test_reports_are_of_all_tasks(worlds, case, size):
    """Among them the mean loss, that of the worst task, and the metric of validation."""
    alone = worlds[1][0][case]["reports"]
    for process in worlds[size]:
        for report, expected in zip(process[case]["reports"], alone, strict=True):
            assert report == pytest.approx(expected, rel=1e-9)


@SEVERAL
@pytest.mark.parametrize("case", ["tasks that cannot be shared evenly", "fewer tasks than processes"])
def test_histograms_count_the_gradients_of_all_tasks(worlds, case, size):
    alone = worlds[1][0][case]["counts"]
    for process in worlds[size]:
        counts = process[case]["counts"]
        assert torch.equal(counts.sum(-1), alone.sum(-1))
        assert (counts - alone).abs().sum() <= 4  # a value next to an edge may round to its other side


@SEVERAL
def test_every_process_has_the_evaluation_of_one(worlds, size):
    for process in worlds[size]:
        for found, expected in zip(process["evaluations"], worlds[1][0]["evaluations"], strict=True):
            assert set(found) == set(expected)
            assert [found["tasks"], found["split"]] == [expected["tasks"], expected["split"]]
            for name in ("mse", "mse_ci95", "mse_max", "mse_per_step", "reverted"):
                assert found[name] == pytest.approx(expected[name], rel=1e-9), name


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_bad_task_of_one_process_is_left_out_by_all(worlds, size):
    assert [p["bad task"] for p in worlds[size]] == [{"skipped": 1.0, "unchanged": True}] * size


@SEVERAL
def test_where_the_writer_refuses_it_says_so_and_the_others_leave_quietly(worlds, size):
    quiet = ["SystemExit(2)"] * (size - 1)
    assert [p["refused"] for p in worlds[size]] == ["UsageError('out: no')", *quiet]


@SEVERAL
def test_processes_start_from_the_parameters_of_the_first(worlds, size):
    assert all(torch.equal(p["start"], torch.full((3,), 7.0)) for p in worlds[size])


@SEVERAL
def test_every_process_loads_the_buffers_of_a_trained_model(worlds, size):
    expected = worlds[1][0]["buffers"]
    for process in worlds[size]:
        found = process["buffers"]
        assert all(torch.equal(found["state"][name], value) for name, value in expected["state"].items())
        assert torch.equal(found["result"], expected["result"])


@pytest.mark.parametrize("tasks", [0, 1, 4, 5, 100])
def test_shares_hold_every_task_once_and_differ_by_at_most_one(tasks):
    shares = [share_of(tasks, worker, 4) for worker in range(4)]
    assert [i for share in shares for i in share] == list(range(tasks))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_worker_killed_and_one_stopped_change_nothing_in_the_run(tmp_path, worlds):
    """A kill at iteration 12, after which torchrun starts all again from the state saved at 10; then a
    request to one worker at 20, which stops all of them after the same step and is saved."""
    settings = CASES["single precision"]
    file = tmp_path / "settings.toml"
    file.write_text(settings.with_training(save=10).to_toml())
    out = tmp_path / "run"
    output, errors = launch(
        *("torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
        *("--nproc-per-node", "2", "--max-restarts", "2", "-m", "tests.training.signalled"),
        *("train", "preset", str(file), "--out", str(out), "--json"),
        cwd=tmp_path,
        SIGNALS="SIGKILL@12 SIGTERM@20",
    )
    assert "exitcode: -9" in errors
    assert "resume with: pathaware train --resume" in errors
    assert json.loads(output)["tasks"] == 1000  # one process has spoken, once
    run = Run.open(out)
    calm = worlds[2][0]["single precision"]
    parameters = torch.cat([p.detach().flatten() for p in run.load("cpu").parameters()])
    assert torch.equal(parameters, calm["parameters"])
    assert [row["iteration"] for row in run.metrics()] == list(range(1, 31))
    assert len(list(out.glob("events.*"))) == 3  # the writer's, of each attempt


def test_processes_meet_whatever_an_earlier_attempt_left_in_the_store():
    store = HashStore()
    store.set_timeout(timedelta(seconds=5))
    for key, value in {
        "nonce/1": "old",
        "reply/old": "gone",
        "nonce/2": "older",
        "confirmed/gone/1": "",
    }.items():
        store.set(key, value)
    with ThreadPoolExecutor(3) as pool:
        first, late = pool.submit(agree_on_attempt, store, 0, 3), pool.submit(agree_on_attempt, store, 2, 3)
        time.sleep(0.1)  # rank 0 has read an old nonce of rank 1 by now
        names = {each.result() for each in (pool.submit(agree_on_attempt, store, 1, 3), late)}
        assert names == {first.result()}
        assert names != {"gone"}


def test_only_where_someone_restarts_processes_does_a_run_go_on_in_its_folder(tmp_path):
    class Restarting(type(ALONE)):
        restarts = True

    settings = config(iterations=3)
    run = train(settings, tmp_path / "run")
    (run.folder / "checkpoint.safetensors").unlink()  # as if it had not come to its end
    with pytest.raises(UsageError, match="holds another run"):
        train(settings, run.folder)
    with pytest.raises(UsageError, match="holds another run"):
        train(config(iterations=4), run.folder, world=Restarting())
    assert train(settings, run.folder, world=Restarting()).finished
    stamp = (run.folder / "metrics.jsonl").stat().st_mtime_ns
    train(settings, run.folder, world=Restarting())
    assert (run.folder / "metrics.jsonl").stat().st_mtime_ns == stamp


def test_without_torchrun_a_process_is_alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with process_group(config().training) as world:
        assert world is ALONE
