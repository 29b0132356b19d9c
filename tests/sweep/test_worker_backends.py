"""Which GPU and how many threads each worker gets."""

from __future__ import annotations

import pytest
import torch

from pathaware import UsageError
from pathaware.sweep.plan import SweepPlan
from pathaware.sweep.worker_backends import device_slots


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
