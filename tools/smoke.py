"""Build the sdist and the wheel, install the wheel into an empty environment, and use it there.

    python tools/smoke.py [FOLDER]

The wheel is built from the sdist, so the sdist is complete. FOLDER keeps what was built; without it all is
deleted at the end. Needs git, and a package index to install from; takes a few minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_SHIPPED = (".ci/",)

DRAW = """
from pathlib import Path
from PIL import Image
from pathaware.data import open_store
images = open_store("glyphs").images
for c in (0, 1, 2):
    for i in range(4):
        folder = Path("support" if i < 2 else "new", f"class {c}")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[20 * c + i, 0].numpy()).save(folder / f"{i}.png")
"""

IMPORT_ALL = """
import importlib, pkgutil, pathaware
for module in pkgutil.walk_packages(pathaware.__path__, "pathaware."):
    if not module.name.startswith("pathaware.engine.kernels") and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(pathaware.__file__)
"""


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output; a failure prints it and ends the program."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, check=False, text=True, capture_output=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist; return both."""
    venv.create(folder / "build-env", with_pip=True)
    python = folder / "build-env/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "build")
    run(python, "-m", "build", "--outdir", folder / "dist", ROOT)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    return sdist, wheel


def check_sdist(sdist: Path) -> str:
    """Every file under version control is in the sdist."""
    with tarfile.open(sdist) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    tracked = [name for name in run("git", "ls-files").splitlines() if not name.startswith(NOT_SHIPPED)]
    missing = sorted(set(tracked) - found)
    if missing:
        sys.exit(f"the sdist lacks {', '.join(missing)}")
    return f"{len(tracked)} files, {sdist.stat().st_size / 1e6:.1f} MB"


def check_wheel(wheel: Path) -> str:
    """The wheel has the package, with all its data, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    strangers = {name for name in names if not name.startswith("pathaware")}
    tracked = run("git", "ls-files", "src/pathaware").splitlines()
    missing = {name.removeprefix("src/") for name in tracked if not name.endswith("README.md")} - names
    if strangers or missing:
        sys.exit(f"the wheel has {sorted(strangers)} and lacks {sorted(missing)}")
    return f"{len(names)} files, {wheel.stat().st_size / 1e6:.1f} MB"


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel with the pinned versions into a new environment; return its folder of programs."""
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env/bin"
    run(programs / "python", ROOT / "tools/torch_build.py", "cpu")
    constraints = folder / "env/constraints.txt"
    run(programs / "python", "-m", "pip", "install", "--quiet", "-c", constraints, f"{wheel}[serve]")
    return programs


def use(programs: Path, folder: Path) -> str:
    """Run the installed package outside the repository, with its own folder for data."""
    work = folder / "work"
    work.mkdir()
    hidden = ("PYTHONPATH", "PATHAWARE_DATA")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env["PATHAWARE_DATA"] = str(folder / "data")

    def here(*command: str) -> str:
        return run(programs / command[0], *command[1:], cwd=work, env=env)

    version = here("pathaware", "--version").strip()
    where = here("python", "-c", IMPORT_ALL).strip()
    if not Path(where).is_relative_to(folder / "env"):
        sys.exit(f"pathaware was imported from {where}")
    here("python", "-c", DRAW)
    labels = here("pathaware", "predict", "glyphs", "--support", "support", "--images", "new")
    if labels.count(".png") != 6:
        sys.exit(f"predict printed:\n{labels}")
    here("pathaware", "train", "glyphs", "--iterations", "3", "--out", "run")
    here("pathaware", "evaluate", "run", "--tasks", "4", "--json")
    return version


def timed(name: str, step: Callable[[], str]) -> None:
    began = time.monotonic()
    print(f"{name}: {step()} ({time.monotonic() - began:.0f} s)", flush=True)


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments[0] if arguments else temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        sdist, wheel = build(folder)
        print(f"built {sdist.name} and {wheel.name} ({time.monotonic() - began:.0f} s)", flush=True)
        timed("sdist", lambda: check_sdist(sdist))
        timed("wheel", lambda: check_wheel(wheel))
        began = time.monotonic()
        programs = install(wheel, folder)
        print(f"installed ({time.monotonic() - began:.0f} s)", flush=True)
        timed("imported every module, predicted, trained, evaluated", lambda: use(programs, folder))


if __name__ == "__main__":
    main(sys.argv[1:])
