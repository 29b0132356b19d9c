"""The commands as they are called."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pathaware.cli import main
from pathaware.cli.show import command_line, plugin_modules
from pathaware.core.errors import Stopped
from pathaware.methods import METHODS
from pathaware.training.provenance import task_values
from pathaware.training.run_folder import Run
from tests.calling import done, pathaware, refused

SMALL = ("--iterations", "20", "--tasks", "5")


def process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, with all that libraries print."""
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "pathaware", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sine"
    ended = pathaware("train", "sine", *SMALL, "--out", folder)
    assert ended.code == 0, ended.err
    assert "of tasks reverted by the divergence guard" in ended.out
    assert "20/20" in ended.err
    return folder


def test_evaluate_prints_one_json_object_with_stable_keys(run):
    """In a process of its own, with all that libraries print."""
    ended = process("evaluate", str(run), "--tasks", "20", "--json", cwd=run.parent)
    result = json.loads(ended.stdout)
    assert {"mse", "mse_ci95", "mse_max", "tasks", "mse_per_step"} <= set(result)
    assert result["tasks"] == 20
    assert ended.stderr == ""


def test_evaluate_records_what_made_the_result(run, tmp_path):
    target = tmp_path / "record.json"
    done("evaluate", run, "--tasks", 20, "--record", target)
    record = json.loads(target.read_text())
    assert record["config"]["method"]["name"] == "pamela"
    assert record["result"]["tasks"] == 20
    assert {"commit", "dirty", "environment", "training_seconds", "checkpoint_sha256"} <= set(record)
    assert (record["result"]["queries"], record["result"]["balance"]) == ("batch", "balanced")
    assert (record["evaluation_seed"], record["training_iterations"]) == (0, 20)
    assert record["identity"] == {"validated": False, "precision": "tf32", "method_version": 2}
    assert record["checkpoint_rule"] == "the last"
    assert len(record["tensors_sha256"]) == 64
    assert [point[0] for point in record["training_loss"]] == list(range(1, 21))
    (origin,) = record["trained_with"]
    assert (origin["iteration"], origin["method_version"], origin["device"]) == (0, 2, "cpu")
    assert "," in origin["environment"]["cpu"]
    values = task_values(record)
    assert values.shape == (20,)
    assert values.double().mean().item() == pytest.approx(record["result"]["mse"], rel=1e-6)


def test_more_steps_than_trained_must_be_asked_for(run):
    line = "evaluate", run, "--steps", 7, "--tasks", 5
    assert "--extend: is needed for 7 steps, more than the 5" in refused(*line)
    assert len(json.loads(done(*line, "--extend", "--json"))["mse_per_step"]) == 8


def test_plot_writes_the_figures(run):
    done("plot", run)
    names = {path.name for path in (run / "figures").iterdir()}
    assert names == {"curves.png", "mse-per-step.png", "trend.png", "training.png"}
    assert all((run / "figures" / name).read_bytes()[:4] == b"\x89PNG" for name in names)


def test_methods_lists_every_method():
    listed = pathaware("methods", columns=80).out
    assert all(f" {name} " in listed for name in METHODS)
    assert "…" not in listed  # no word is cut off
    assert "arXiv" not in listed
    assert "arXiv:2010.09291" in done("methods")


def test_methods_shows_the_update_and_the_settings_of_one():
    shown = done("methods", "l-maml")
    assert "L_query(θₙ) + η/2 log det(F + τI)" in shown
    assert "--set method.prior_precision=1.0\n" in shown
    (told,) = json.loads(done("methods", "metal", "--json"))
    assert (told["transductive"], told["settings"]["transductive"]) == ("queries", True)


def test_another_runs_folder_is_refused_and_left_alone(run):
    before = {path.name: path.stat().st_mtime_ns for path in run.iterdir()}
    error = refused("train", "sine", *SMALL, "--out", run)
    assert error == f"error: --out: {run} holds another run; name a new folder or remove it\n"
    assert {path.name: path.stat().st_mtime_ns for path in run.iterdir()} == before


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        assert refused("train", "sine", *SMALL, "--out", place).startswith("error: --out: ")


def test_commands_to_copy_are_quoted_and_trust_the_code_of_the_run(run, tmp_path, monkeypatch):
    assert command_line("plot", "a b", modules=()) == "pathaware plot 'a b'"
    code = "import dataclasses\nfrom pathaware.methods.maml import METHOD as MAML\n"
    code += 'METHOD = dataclasses.replace(MAML, name="copied_maml:METHOD")\n'
    (tmp_path / "copied_maml.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    line = ["train", "sine", *SMALL, "--method", "copied_maml:METHOD", "--out", "my runs/a"]
    hint = "plot it with: PATHAWARE_TRUST=copied_maml python -m pathaware plot 'my runs/a'\n"
    assert done(*line, cwd=tmp_path).endswith(hint)
    assert plugin_modules(run) == []
    monkeypatch.setattr("pathaware.core.settings._trusted", set())  # as in a new process
    del sys.modules["copied_maml"]
    for command in ("train", "pretrain"):
        assert refused(command, "--resume", "my runs/a", cwd=tmp_path).startswith(
            "error: --resume: my runs/a"
        )
    (tmp_path / "my runs/a/checkpoint.safetensors").unlink()
    (tmp_path / "my runs/a/metrics.jsonl").write_text("")
    monkeypatch.setenv("PATHAWARE_TRUST", "copied_maml")
    resume = "PATHAWARE_TRUST=copied_maml python -m pathaware train --resume 'my runs/a'"
    for name in ("report", "evaluate"):
        error = refused(name, "my runs/a", cwd=tmp_path)
        assert error == f"error: RUN: my runs/a is not finished; resume it with: {resume}\n"


def test_the_command_that_resumes_a_stopped_run_trusts_its_code(tmp_path, monkeypatch, capsys):
    config = '[method]\nname = "own.rules:METHOD"\n[training]\ndevice = "cuda:1"\n'
    (tmp_path / "config.toml").write_text(config + '[problem]\nmodel_name = "timm:resnet18"\n')

    def stop(*_: object, **__: object) -> None:
        raise Stopped(signal.SIGTERM, [tmp_path])

    monkeypatch.setattr("pathaware.cli.command", stop)
    with pytest.raises(SystemExit):
        main(["train", "sine"])
    resume = f"PATHAWARE_TRUST=own.rules python -m pathaware train --resume {tmp_path}\n"
    assert capsys.readouterr().err.endswith(f"resume with: {resume}")


def test_a_file_that_cannot_be_written_is_refused_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("")
    for path, reason in (
        ("nodir/x.json", "there is no folder nodir"),
        ("file/x.json", "file is not a folder"),
        (".", "it is a folder"),
    ):
        error = refused("evaluate", "sine", "--record", path, cwd=tmp_path)
        assert error == f"error: --record: {path} cannot be written ({reason})\n"


def test_the_demo_writes_one_report_that_needs_nothing_else(tmp_path):
    told = done("demo", "--out", "demo", "--scale", "0.004", cwd=tmp_path)
    assert "the report is demo/report.html: open it in a browser\n" in told
    assert told.endswith(" serve glyphs --open\n")
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "0.41 ± 0.04" in page
    assert page.count("data:image/svg+xml;base64,") == 8
    assert "batch norm over the queries (transductive)" in page
    assert set(re.findall(r"https?://[^\s\"<]+", page)) == {"https://arxiv.org/abs/2010.09291"}


@pytest.mark.slow
def test_importing_the_package_adds_little_to_importing_torch():
    """The best of up to four pairs, since machines are noisy."""

    def seconds(module: str) -> float:
        code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)

    torch_alone, package = [], []
    for _ in range(4):
        torch_alone.append(seconds("torch"))
        package.append(seconds("pathaware"))
        if min(package) < 1.5 * min(torch_alone):
            return
    raise AssertionError(f"pathaware: {min(package):.2f} s, torch: {min(torch_alone):.2f} s")


def test_evaluate_knows_three_levels_and_refuses_joint_where_the_method_has_none(run):
    line = "evaluate", run, "--tasks", 5, "--queries"
    result = json.loads(done(*line, "alone", "--json"))
    assert (result["queries"], result["transductive"], result["balance"]) == ("alone", False, "balanced")
    error = refused(*line, "joint")
    assert error == "error: --queries: the method has no joint inference; use alone or batch\n"


def test_what_follows_training_is_announced_unless_quiet(tmp_path, monkeypatch):
    from pathaware.inference import calibration
    from pathaware.training.problems import Classification

    small = {"tasks": 1, "seed": 0, "split": "val", "sizes": [(2, 1)]}
    monkeypatch.setattr(calibration.fit_calibration, "__kwdefaults__", small)
    monkeypatch.setattr(Classification, "evaluation_tasks", 4)
    line = ["train", "glyphs", "--width", "4", "--iterations", "1", "--set", "training.validate=1"]
    line += ["--set", "training.validation_tasks=2"]
    ended = pathaware(*line, "--out", "a", cwd=tmp_path)
    title = "pamela on glyphs-5way-1shot"
    assert ended.err.splitlines()[-2:] == [
        f"{title}: evaluating 4 test tasks …",
        f"{title}: calibrating on validation classes …",
    ]
    quiet = pathaware(*line, "--out", "b", "--json", cwd=tmp_path)
    assert (quiet.code, quiet.err) == (0, "")


def test_stopping_the_evaluation_after_training_says_that_training_is_complete(tmp_path, monkeypatch):
    def interrupted(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathaware.training.evaluation.evaluate", interrupted)
    ended = pathaware("train", "sine", "--iterations", "2", "--out", "a", cwd=tmp_path)
    assert ended.code == 130
    assert ended.err.splitlines()[-1] == "stopped; the training in a is complete"
    assert Run.open(tmp_path / "a").finished


def test_the_evaluation_after_training_may_be_small_or_left_out(tmp_path):
    line = ["train", "sine", "--iterations", "2", "--test-tasks"]
    assert json.loads(done(*line, 3, "--out", "a", "--json", cwd=tmp_path))["tasks"] == 3
    none = pathaware(*line, 0, "--out", "b", cwd=tmp_path)
    assert "evaluating" not in none.err
    assert none.out == "the run is in b; evaluate it with: pathaware evaluate b\n"
    assert json.loads(done(*line, 0, "--out", "c", "--json", cwd=tmp_path))["tasks"] == 0
    again = done("train", "--resume", "b", "--test-tasks", 5, "--json", cwd=tmp_path)
    assert json.loads(again)["tasks"] == 5
    assert "test-tasks" in refused(*line, "-1", cwd=tmp_path)
