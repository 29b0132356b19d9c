"""That the package installs elsewhere: the pins beside what the index serves, and what `make` decides."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


def constraints() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def pin(requirement: Requirement) -> str | None:
    """The version that it asks for, where it asks for exactly one."""
    exact = [one.version for one in requirement.specifier if one.operator in ("==", "===")]
    return exact[0] if exact else None


def test_every_direct_dependency_is_pinned_within_its_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = constraints()
    # Optuna and timm have no pin: nothing of `make` installs them.
    optional = project["optional-dependencies"]
    extras = [line for name in optional if name not in ("search", "timm") for line in optional[name]]
    for line in [*project["dependencies"], *extras]:
        requirement = Requirement(line)
        if requirement.name in ("pathaware", "triton"):
            continue
        version = pin(ours[canonicalize_name(requirement.name)])
        assert version is not None
        assert requirement.specifier.contains(version), f"{requirement} does not allow {version}"
        assert all(one.operator == ">=" for one in requirement.specifier), (
            f"{line}: an upper bound needs a reason"
        )


# What `make install` decides.


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class Machine:
    """A machine to decide for: what is installed there, what it has, what it can reach."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tool = load("torch_build")
        self.monkeypatch = monkeypatch
        self.installs: list[tuple[str, ...]] = []
        self.has()
        monkeypatch.setattr(self.tool.platform, "system", lambda: "Linux")
        monkeypatch.setattr(self.tool, "pip", self.pip)

    def has(self, installed=None, gpu=False, disk=None, index=None) -> None:
        answers = {"installed": installed, "has_gpu": gpu, "on_disk": disk, "on_index": index}
        for name, answer in answers.items():
            self.monkeypatch.setattr(self.tool, name, lambda *_, answer=answer: answer)

    def pip(self, *arguments, quiet=False):
        self.installs.append(arguments)
        return subprocess.CompletedProcess(arguments, 0)

    def choose(self, wish: str) -> str:
        self.installs.clear()
        return str(self.tool.choose(wish, "2.13.0"))


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_a_machine_without_a_gpu_gets_the_cpu_build_and_is_told_how_much_that_is(machine, capsys):
    machine.has(index=191_800_000)
    assert machine.choose("auto") == "torch==2.13.0+cpu"
    assert machine.installs[0][-1] == "torch==2.13.0+cpu"
    assert "CPU build, as there is no NVIDIA GPU: 192 MB to download" in capsys.readouterr().out


def test_a_wheel_that_pip_has_on_disk_comes_first(machine, capsys):
    machine.has(disk="/wheels/torch.whl", index=191_800_000)
    assert machine.choose("auto") == "torch==2.13.0+cpu"
    assert "--no-index" in machine.installs[0]
    assert "nothing to download" in capsys.readouterr().out


def test_where_the_cpu_build_cannot_be_had_the_ordinary_one_is_taken(machine, capsys):
    assert machine.choose("auto") == machine.choose("cpu") == "torch===2.13.0"
    assert machine.installs == []
    said = capsys.readouterr().out
    assert "cannot be had" in said
    assert "GB" in said


def test_a_machine_with_a_gpu_gets_the_ordinary_build(machine):
    machine.has(gpu=True, index=191_800_000)
    assert machine.choose("auto") == machine.choose("cuda") == "torch===2.13.0"
    assert machine.choose("cpu") == "torch==2.13.0+cpu"


def test_a_torch_that_is_installed_is_kept(machine, capsys):
    machine.has(installed="2.12.1+cu126", index=191_800_000)
    assert {machine.choose(wish) for wish in ("auto", "keep", "cuda")} == {"torch==2.12.1+cu126"}
    assert machine.installs == []
    assert "2.12.1+cu126 is installed and kept" in capsys.readouterr().out
    assert machine.choose("cpu") == "torch==2.13.0+cpu"
    machine.has(installed="2.4.0", index=191_800_000)
    assert machine.choose("keep") == "torch==2.13.0"
    assert machine.choose("auto") == "torch==2.13.0+cpu"


def test_later_installs_are_held_to_what_was_chosen(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(machine.tool.sys, "prefix", str(tmp_path))
    machine.has(index=191_800_000)
    assert machine.tool.main(["cpu"]) == 0
    written = (tmp_path / "constraints.txt").read_text()
    ours = (ROOT / "constraints.txt").read_text()
    assert written == re.sub(r"^torch==.*$", r"\g<0>+cpu", ours, flags=re.MULTILINE)
    # A PyTorch of another version brings a Triton of its own.
    machine.has(installed="2.12.1")
    assert machine.tool.main([]) == 0
    written = (tmp_path / "constraints.txt").read_text()
    assert "\ntorch==2.12.1\n" in written
    assert not re.search(r"^triton", written, re.MULTILINE)
    assert machine.tool.main(["rocm"]) == 2


def test_the_cpu_build_is_looked_up_on_its_index(monkeypatch, tmp_path):
    tool = load("torch_build")
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    wheel = f"torch-9.1.0+cpu-{tag}-{tag}-manylinux_2_28_{tool.platform.machine()}.whl"
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / wheel).write_bytes(bytes(1234))
    quoted = urllib.parse.quote(wheel)
    (tmp_path / "torch" / "index.html").write_text(f'<a href="/torch/{quoted}#sha256=0">{wheel}</a>')
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(tool, "CPU_INDEX", f"http://127.0.0.1:{server.server_port}")
        assert tool.on_index("9.1.0") == 1234
        assert tool.on_index("9.2.0") is None
        server.shutdown()
    assert tool.on_index("9.1.0") is None


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


# What a Python that will not do is answered.


def check_python(before: str) -> subprocess.CompletedProcess[str]:
    program = f"import runpy, sys; {before}; runpy.run_path({str(ROOT / 'tools/python_check.py')!r})"
    return subprocess.run([sys.executable, "-c", program], check=False, text=True, capture_output=True)


def test_a_python_that_is_too_old_is_answered_with_one_line():
    answer = check_python("sys.version_info = (3, 9, 18, 'final', 0)")
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert "needs Python 3.11 or newer" in line
    assert "is 3.9.18" in line
    assert "uv venv" in line


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_without_venv_is_answered_with_one_line(module):
    answer = check_python(f"sys.modules[{module!r}] = None")
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert f"apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv" in line


def test_this_python_will_do():
    assert check_python("pass").returncode == 0


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_a_python_that_is_not_there_is_answered_with_one_line(tmp_path):
    answer = subprocess.run(
        ["make", "install", "PYTHON=no-such-python", f"VENV={tmp_path}/venv"],
        cwd=ROOT,
        check=False,
        text=True,
        capture_output=True,
    )
    assert answer.returncode == 2
    said = [line for line in answer.stderr.splitlines() if not line.startswith("make")]
    assert said == [
        "There is no no-such-python: install Python 3.11 or newer, or name one: make PYTHON=/path/to/python"
    ]


def test_one_line_installs_and_the_extras_that_the_tutorial_names_exist() -> None:
    root = Path(__file__).parents[1]
    line = "$ pip install '.[serve]'          # in a clone"
    for name in ("README.md", "docs/index.md", "docs/tutorial.md"):
        assert line in (root / name).read_text(encoding="utf-8")
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"serve", "onnx", "timm", "search", "cluster"} <= set(extras["optional-dependencies"])
