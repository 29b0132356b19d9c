"""Puts the right build of PyTorch into the environment that runs this, before anything else comes there.

    python tools/torch_build.py [auto|cpu|cuda|keep]

On Linux the index serves the CUDA build, gigabytes with NVIDIA's libraries, which nobody without such a GPU
needs. `auto` takes the CPU build where there is no NVIDIA GPU; `cpu` and `cuda` decide by hand; `keep` leaves
the choice to pip and its configuration. A PyTorch that is installed is kept, except that `cpu` and `cuda`
replace one of the other build. Where the CPU build cannot be had, the ordinary one is taken.

What was chosen is written as constraints.txt into the environment, for the installs that follow.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")
# Of the pinned version, with what it requires, as `tools/resolve.py` prints them.
ORDINARY = {"Linux": "about 2.8 GB, most of it NVIDIA's libraries", "Darwin": "about 110 MB"}
# The CPU build is a convenience: not worth a long wait where its index cannot be reached.
TIMEOUT = 8


def say(line: str) -> None:
    print(line, flush=True)


def pip(*arguments: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    if quiet:
        return subprocess.run(command, check=False, text=True, capture_output=True)
    return subprocess.run(command, check=False, text=True)


def pinned(constraints: str) -> str:
    found = re.search(r"^torch==([\w.]+)", constraints, re.MULTILINE)
    if found is None:
        raise SystemExit("constraints.txt says nothing of torch")
    return found[1]


def installed() -> str | None:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def new_enough(version: str) -> bool:
    """True if pyproject.toml allows this version."""
    least = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    found = re.match(r"[\d.]*\d", version)

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(".")]

    return least is None or (found is not None and numbers(found[0]) >= numbers(least[1]))


def is_cpu(version: str) -> bool:
    """True for a CPU build. Builds for macOS are CPU builds too, without a suffix."""
    return version.endswith("+cpu") or platform.system() != "Linux"


def has_gpu() -> bool:
    """True if there is an NVIDIA GPU; PyTorch is not installed yet and cannot be asked."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    listed = subprocess.run([program, "-L"], check=False, capture_output=True, text=True)
    return listed.returncode == 0 and "GPU" in listed.stdout


def on_disk(requirement: str) -> str | None:
    """The wheel that pip's own configuration (`find-links`) offers without an index."""
    answer = pip(
        "install", "--dry-run", "--ignore-installed", "--no-index", "--no-deps", "--report", "-", "--quiet",
        requirement, quiet=True,
    )  # fmt: skip
    if answer.returncode != 0:
        return None
    location = json.loads(answer.stdout)["install"][0]["download_info"]["url"]
    return urllib.parse.unquote(urllib.parse.urlsplit(location).path)


def on_index(version: str) -> int | None:
    """Size in bytes of the CPU build on PyTorch's own index, or None if it is not available."""
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = rf"torch-{re.escape(version)}(?:\+|%2B)cpu-{tag}-{tag}-\w*{platform.machine()}\.whl"
    page = f"{CPU_INDEX}/torch/"
    try:
        with urllib.request.urlopen(page, timeout=TIMEOUT) as answer:
            found = re.search(rf'href="((?:[^"#]*/)?{name})', answer.read().decode())
        if found is None:
            return None
        # What is not quoted, a plus among it, is not to be taken for a space.
        address = urllib.parse.urljoin(page, urllib.parse.quote(found[1], safe=":/%"))
        head = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(head, timeout=TIMEOUT) as answer:
            return int(answer.headers.get("Content-Length", 0))
    except (OSError, ValueError):
        return None


def take_cpu(version: str, why: str) -> bool:
    """Installs the CPU build; False where it cannot be had."""
    requirement = f"torch=={version}+cpu"
    wheel = on_disk(requirement)
    if wheel is not None:
        say(f"PyTorch {version}, CPU build{why}: from {wheel}, nothing to download")
        return pip("install", "--quiet", "--no-index", "--no-deps", requirement).returncode == 0
    size = on_index(version)
    if size is None:
        say(f"PyTorch's CPU build cannot be had from {CPU_INDEX}: the ordinary one is taken")
        return False
    say(f"PyTorch {version}, CPU build{why}: {size / 1e6:.0f} MB to download")
    # What it requires comes from the ordinary index, in the versions of constraints.txt.
    done = pip("install", "--no-deps", "--index-url", CPU_INDEX, requirement)
    return done.returncode == 0


def choose(wish: str, version: str) -> str:
    """Installs what was wished for; returns the requirement that keeps later installs at it."""
    there = installed()
    if there is not None and not new_enough(there):
        say(f"PyTorch {there} is installed, and too old")
        there = None
    ordinary = ORDINARY.get(platform.system(), "about 120 MB")
    if there is not None and (wish in ("auto", "keep") or (wish == "cpu") == is_cpu(there)):
        say(f"PyTorch {there} is installed and kept")
        return f"torch=={there}"
    if wish == "keep":
        say(f"PyTorch {version}, as pip finds it: {ordinary}, unless a build of it is on disk")
        return f"torch=={version}"
    if platform.system() == "Linux" and (wish == "cpu" or (wish == "auto" and not has_gpu())):
        why = "" if wish == "cpu" else ", as there is no NVIDIA GPU"
        if take_cpu(version, why):
            return f"torch=={version}+cpu"
    say(f"PyTorch {version}, the build of the package index: {ordinary}, unless pip has it in its cache")
    # `==` would also take a build of this version with a label, +cpu among them.
    return f"torch==={version}"


def main(arguments: list[str]) -> int:
    wish = arguments[0] if arguments else "auto"
    if wish not in ("auto", "cpu", "cuda", "keep"):
        say(f"TORCH={wish}: must be one of auto, cpu, cuda, keep")
        return 2
    constraints = (ROOT / "constraints.txt").read_text()
    chosen = choose(wish, pinned(constraints))
    chosen_constraints = Path(sys.prefix, "constraints.txt")
    kept = re.sub(r"^torch==.*$", chosen, constraints, flags=re.MULTILINE)
    if not chosen.startswith((f"torch=={pinned(constraints)}", f"torch==={pinned(constraints)}")):
        # A PyTorch of another version comes with a Triton of its own.
        kept = re.sub(r"^triton.*\n", "", kept, flags=re.MULTILINE)
    chosen_constraints.write_text(kept)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
