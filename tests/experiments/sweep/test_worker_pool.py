"""Which GPU and how many threads each worker gets, when it stops, and how often a run is tried."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch

from pathaware import UsageError
from pathaware.experiments.run_store import RunStore
from pathaware.experiments.sweep.plan import SweepPlan
from pathaware.experiments.sweep.worker import Control, StopCheck
from pathaware.experiments.sweep.worker_pool import ATTEMPTS, WorkerPool, device_slots


def runs(**training):
    tables = {"problem": {"name": "sine"}, "method": {"name": "maml"}, "training": training}
    return list(SweepPlan(tables, {"training.seed": [0, 1, 2]}).grid())


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


def seen(found: list[dict[str, str]]) -> list[str | None]:
    return [slot.get("CUDA_VISIBLE_DEVICES") for slot in found]


def test_every_gpu_has_a_worker(gpus):
    assert seen(device_slots(runs(device="auto"), None, None)) == ["0", "1", "2", "3"]


def test_workers_take_the_chosen_gpus_in_turn(gpus):
    assert seen(device_slots(runs(device="cuda"), 3, "cuda:1,cuda:3")) == ["1", "3", "1"]


def test_gpus_that_are_hidden_stay_hidden(gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,5")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert seen(device_slots(runs(device="auto"), None, "cuda:1")) == ["5"]


def test_runs_that_are_for_a_cpu_are_not_given_a_gpu(gpus):
    assert seen(device_slots(runs(), 2, None)) == [None, None]
    with pytest.raises(UsageError, match=r"devices: these runs have training.device = 'cpu'"):
        device_slots(runs(), 2, "cuda:0")


def test_threads_are_divided_between_workers(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert [slot["OMP_NUM_THREADS"] for slot in device_slots(runs(threads=0), 3, None)] == ["2"] * 3
    assert len(device_slots(runs(threads=0), None, None)) == 1  # it takes all threads
    assert len(device_slots(runs(threads=1), None, None)) == 8


def test_workers_stop_when_asked_and_when_the_sweep_is_gone_silent_or_another(tmp_path, monkeypatch):
    path, now = tmp_path / "active", [100.0]
    monkeypatch.setattr("pathaware.experiments.sweep.worker.time.monotonic", lambda: now[0])
    monkeypatch.setattr("pathaware.experiments.sweep.worker.threading.Thread.start", lambda thread: None)
    control = Control(path)
    control.start()

    def check(name: str, sweep: str = control.sweep) -> StopCheck:
        return StopCheck(path, sweep, name, patience=10)

    asked, other, silent = check("a"), check("b"), check("c")
    assert not asked()
    assert not other()
    assert not silent()
    control.stop("a")
    now[0] += 1
    assert asked()
    assert not other()
    assert check("b", "another sweep")()
    now[0] += 9.5
    assert not other()
    now[0] += 1
    assert other()
    assert other.orphaned
    control.end()
    assert check("b")()
    control.stop("d")  # too late to bring the file back
    assert not path.exists()


class Dying:
    """A backend whose workers die `deaths` times, and then finish."""

    patience, size = 1.0, 1

    def __init__(self, deaths: int) -> None:
        self.deaths, self.renewed = deaths, 0

    def submit(self, slot, task):
        future: Future = Future()
        self.deaths -= 1
        if self.deaths >= 0:
            future.set_exception(RuntimeError("killed: {SIGKILL(-9)}"))
        else:
            future.set_result(("done", ""))
        return future

    def renew(self, slot):
        self.renewed += 1

    def close(self):
        pass


@pytest.mark.parametrize("deaths", [ATTEMPTS - 1, ATTEMPTS])
def test_a_run_whose_workers_die_is_tried_a_few_times(tmp_path, deaths):
    backend, ended = Dying(deaths), []
    with WorkerPool(RunStore(tmp_path), backend, lambda line: None) as pool:
        pool.submit(runs()[0])
        assert not pool.free
        while pool.running:
            ended += pool.ended()
    reason = "" if deaths < ATTEMPTS else "its worker process died 3 times (SIGKILL(-9))"
    assert [each.reason for each in ended] == [reason]
    assert backend.renewed == deaths
