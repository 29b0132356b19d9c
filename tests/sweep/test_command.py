"""`pathaware sweep` as a command: trained, interrupted, killed, resumed."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.calling import Ended, pathaware, refused
from tests.forked import Command

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes as Linux shows them")
BASE = '[problem]\nname = "sine"\npoints = 10\n[method]\nname = "maml"\nsteps = 1\n'
HELD = BASE.replace("maml", "tests.sweep.held_method:METHOD")


def words(path: Path, *arguments: str) -> list[str]:
    line = ["sweep", str(path), "--out", str(path.parent / "out")]
    return [*line, "--tasks", "5", "--workers", "2", *arguments]


def started(path: Path, hold: Path) -> Command:
    """The command in a process of its own, with runs that `hold` holds."""
    return Command(words(path), path.parent, partial(_hold, hold))


def _hold(file: Path) -> None:
    os.environ["HOLD"] = str(file)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "research"), str(ROOT)])


def sweep(path: Path, *arguments: str) -> Ended:
    """Run the command in this process, which has imported everything; its workers are processes anyway."""
    return pathaware(*words(path, *arguments))


@pytest.fixture
def hold(tmp_path, monkeypatch) -> Path:
    """While this file exists, runs of `HELD` take a tenth of a second per iteration."""
    monkeypatch.setenv("HOLD", str(tmp_path / "hold"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT / "research"), str(ROOT)]))
    (tmp_path / "hold").touch()
    return tmp_path / "hold"


def written(folder: Path, text: str, base: str = BASE) -> Path:
    path = folder / "sweep.toml"
    path.write_text(base + text, encoding="utf-8")
    return path


def test_runs_are_trained_evaluated_and_kept_and_one_that_fails_stops_no_other(tmp_path):
    path = written(
        tmp_path, "[training]\niterations = 3\n[sweep]\ntraining.seed = [0, 1]\nmethod.steps = [1, 2]\n"
    )
    (tmp_path / "out/runs/seed=1,steps=2/something").mkdir(parents=True)
    done = sweep(path)
    assert done.code == 0, done.err
    assert "4 runs, 4 to train or evaluate, 2 at a time" in done.err
    assert "seed=1,steps=2: " in done.err
    rows = [line for line in done.out.splitlines() if line.startswith("| ")]
    assert rows[0] == "| steps | MSE | seeds |"
    assert rows[2].startswith("| 1 | ")
    assert "seed 1 failed: " in rows[3]
    assert "is not empty" in rows[3]
    out = tmp_path / "out"
    assert {p.suffix for p in out.glob("summary.*")} == {".md", ".tex", ".html"}
    checkpoints = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/checkpoint.safetensors")}
    assert len(checkpoints) == 3

    (out / "runs/seed=1,steps=2/something").rmdir()  # the cause is removed
    again = sweep(path)
    assert "4 runs, 1 to train or evaluate" in again.err
    assert "failed" not in again.out
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in checkpoints.items())

    changed = written(
        tmp_path, path.read_text().removeprefix(BASE).replace("iterations = 3", "iterations = 4")
    )
    assert "holds a run of other settings" in refused(*words(changed))


SEEDS = "[training]\niterations = 500\ntasks = 1\nsave = 10\n[sweep]\ntraining.seed = [0, 1, 2]\n"


def first_lines(runs: list[Path]) -> list[str]:
    """The first report of each run, which holds its time: it stays the same if the run is resumed."""
    return [(run / "metrics.jsonl").read_text().splitlines()[0] for run in runs]


def saved(runs: list[Path]) -> bool:
    return all(list(run.glob("state-*.safetensors")) for run in runs)


def assert_each_ended_once(folder: Path, runs: list[Path], before: list[str]) -> None:
    assert first_lines(runs) == before
    assert all('"iteration": 500' in (r / "metrics.jsonl").read_text().splitlines()[-1] for r in runs)
    assert len(list((folder / "out/results").glob("*-val.json"))) == 3


@LINUX
def test_a_worker_that_is_killed_is_replaced_and_a_sweep_that_is_interrupted_resumes(tmp_path, hold):
    path = written(tmp_path, SEEDS, HELD)
    runs = [tmp_path / "out/runs" / name for name in ("seed=0", "seed=1")]
    interrupted = started(path, hold)
    interrupted.wait_until(lambda: saved(runs), 300)
    before = first_lines(runs)
    workers = [pid for pid in children_of(interrupted.pid) if "popen_loky" in _command_line(pid)]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    interrupted.wait_until(lambda: "another one resumes it" in interrupted.err, 300)
    interrupted.send(signal.SIGINT)
    assert interrupted.wait() == 130, interrupted.err
    assert interrupted.err.count("its worker process died (SIGKILL(-9)); another one resumes it") == 1
    assert "run the same command to resume" in interrupted.err
    hold.unlink()
    done = sweep(path)
    assert done.code == 0, done.err
    assert "failed" not in done.out
    assert_each_ended_once(tmp_path, runs, before)


@LINUX
def test_workers_end_when_the_sweep_is_killed(tmp_path, hold):
    path = written(tmp_path, SEEDS.replace("500", "10000000").replace("0, 1, 2", "0"), HELD)
    killed = started(path, hold)
    killed.wait_until((tmp_path / "out/runs/seed=0/metrics.jsonl").exists, 300)
    children = children_of(killed.pid)
    assert children
    killed.process.kill()
    killed.wait()
    deadline = time.monotonic() + 20
    while any(_alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(child) for child in children)


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_sweep_on_a_dask_cluster_survives_the_death_of_a_worker(tmp_path, hold, workers):
    distributed = pytest.importorskip("distributed")
    path = written(tmp_path, SEEDS, HELD)
    runs = [tmp_path / "out/runs" / name for name in ("seed=0", "seed=1")][:workers]
    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        pids = client.run(os.getpid)
        assert len(pids) == workers
        before: list[str] = []

        def kill() -> None:
            while not saved(runs):
                time.sleep(0.05)
            before.extend(first_lines(runs))
            os.kill(next(iter(pids.values())), signal.SIGKILL)
            hold.unlink()

        with ThreadPoolExecutor(1) as pool:
            killed = pool.submit(kill)
            done = sweep(path, "--backend", "dask", "--cluster", cluster.scheduler_address)
            killed.result()
    assert done.code == 0, done.err
    assert f"3 runs, 3 to train or evaluate, {workers} at a time" in done.err
    assert "failed" not in done.out
    assert_each_ended_once(tmp_path, runs, before)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_its_backend_is_an_error(tmp_path):
    done = sweep(written(tmp_path, SEEDS), "--backend", "ray")
    assert done.code == 2
    assert done.err == "error: --backend: ray needs ray, which is not installed; pip install ray\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://nowhere", "tcp://127.0.0.1:x"])
def test_a_cluster_that_cannot_be_reached_is_an_error(tmp_path, address):
    pytest.importorskip("distributed")
    told = refused(*words(written(tmp_path, SEEDS)), "--backend", "dask", "--cluster", address)
    assert told.startswith(f"error: --cluster: {address} cannot be reached (")
    assert not (tmp_path / "out").exists()


def children_of(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
