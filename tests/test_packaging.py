"""One version everywhere, valid files for contributors, and a wheel that works once installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import yaml

from pathaware import __version__
from pathaware.cli import main
from pathaware.training.evaluation import evaluate
from pathaware.training.train import open_to_resume, train

ROOT = Path(__file__).parents[1]
YAML = [
    ROOT / "CITATION.cff",
    ROOT / ".pre-commit-config.yaml",
    *sorted((ROOT / ".github").rglob("*.yml")),
]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert not left.value.code
    assert capsys.readouterr().out == f"pathaware {__version__}\n"


def test_every_python_version_that_the_package_names_is_tested():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if " :: Python :: 3." in each]
    strategy = yaml.safe_load(read(".github/workflows/test.yml"))["jobs"]["test"]["strategy"]
    assert strategy["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"


def test_the_version_and_its_date_are_the_same_in_all_files():
    released = re.findall(r"^## (\d[\d.]*) \((\d{4}-\d\d-\d\d)\)$", read("CHANGELOG.md"), re.MULTILINE)
    citation = yaml.safe_load(read("CITATION.cff"))
    assert released[0] == (__version__, str(citation["date-released"]))
    assert citation["version"] == __version__


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_files_for_contributors_can_be_read(path):
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_pre_commit_uses_the_pinned_ruff():
    (pinned,) = re.findall(r"^ruff==(.*)$", read("constraints.txt"), re.MULTILINE)
    hooks = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert [hook["rev"] for hook in hooks if "ruff" in hook["repo"]] == [f"v{pinned}"]


def test_github_runs_the_test_command_of_the_readme():
    steps = yaml.safe_load(read(".github/workflows/test.yml"))["jobs"]["test"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands == ["make test TORCH=cpu"]
    assert "$ make test" in read("README.md")


def test_a_stopped_run_of_version_0_1_0_is_resumed(tmp_path):
    """Version 0.1.0 wrote this folder, with a checksum in every line of the metrics."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path / "run"
    shutil.copytree(ROOT / "tests/training/run-0.1.0", folder)
    stopped = open_to_resume(folder, {})
    before = list(stopped.metrics())
    run = train(stopped.config, stopped.folder, resume=True)
    after = list(run.metrics())
    assert after[: len(before)] == before
    assert before[-1]["iteration"] <= 121 < after[-1]["iteration"] == run.config.training.iterations
    result = evaluate(run.load("cpu"), run.config.problem, tasks=100).summary()
    assert result["mse"] < result["mse_per_step"][0]


@pytest.mark.slow
def test_a_wheel_installs_into_an_empty_environment_and_works():
    done = subprocess.run(
        [sys.executable, ROOT / "tools/smoke.py"], check=False, text=True, capture_output=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"pathaware {__version__}" in done.stdout
