"""When a worker stops, and how often a run is tried."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from pathaware.sweep.run_store import RunStore
from pathaware.sweep.training_worker import Control, StopCheck
from pathaware.sweep.worker_backends import ATTEMPTS
from pathaware.sweep.worker_pool import WorkerPool
from tests.sweep.test_worker_backends import runs


def test_workers_stop_when_asked_and_when_the_sweep_is_gone_silent_or_another(tmp_path, monkeypatch):
    path, now = tmp_path / "active", [100.0]
    monkeypatch.setattr("pathaware.sweep.training_worker.time.monotonic", lambda: now[0])
    monkeypatch.setattr("pathaware.sweep.training_worker.threading.Thread.start", lambda thread: None)
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
