"""Asks the package index whether constraints.txt can be installed, for every platform and Python meant.

    python tools/resolve.py [--only TEXT] [--out FILE]

Nothing is installed, and nothing on this machine counts: wheels on disk, further indexes and pip's other
configuration are switched off; of it only the index itself and how to reach it are kept. Only metadata is
downloaded, so the whole table takes minutes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = "serve,test,lint"
CPU_INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")


def manylinux(machine: str) -> list[str]:
    # pip takes a platform by its word: manylinux_2_28 does not stand for what runs on older ones.
    older = [f"manylinux_2_{minor}_{machine}" for minor in range(28, 4, -1)]
    return [*older, f"manylinux2014_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]


def macos(machine: str) -> list[str]:
    return [f"macosx_{major}_0_{kind}" for major in range(14, 10, -1) for kind in (machine, "universal2")]


def markers(os_name: str, sys_platform: str, system: str, machine: str) -> dict[str, str]:
    return {
        "os_name": os_name,
        "sys_platform": sys_platform,
        "platform_system": system,
        "platform_machine": machine,
    }


# Its name, pip's platforms, and what environment markers say there.
PLATFORMS: dict[str, tuple[list[str], dict[str, str]]] = {
    "Linux x86_64": (manylinux("x86_64"), markers("posix", "linux", "Linux", "x86_64")),
    "Linux aarch64": (manylinux("aarch64"), markers("posix", "linux", "Linux", "aarch64")),
    "macOS 14 arm64": (macos("arm64"), markers("posix", "darwin", "Darwin", "arm64")),
    "Windows x86_64": (["win_amd64"], markers("nt", "win32", "Windows", "AMD64")),
}

# pip chooses files for --platform and --python-version, but reads environment markers for the machine it runs
# on: on Linux it would look for NVIDIA's libraries for macOS. So it is given the markers of the other system.
ELSEWHERE = """
import json, sys
from pip._vendor.packaging import markers
here = markers.default_environment()
here.update(json.loads(sys.argv.pop(1)))
markers.default_environment = lambda: dict(here)
from pip._internal.cli.main import main
sys.exit(main())
"""


def index_only() -> dict[str, str]:
    """The environment for a pip that knows the index and how to reach it, and nothing else."""
    kept = ("index_url", "cert", "client_cert", "proxy", "trusted_host")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=False, text=True, capture_output=True
    )
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        setting = name.rpartition(".")[2].replace("-", "_")
        if setting in kept:
            environment[f"PIP_{setting.upper()}"] = value.strip("'\"")
    return environment | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def size(address: str) -> int:
    if not address.startswith("http"):
        return 0
    with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=60) as answer:
        return int(answer.headers.get("Content-Length", 0))


def reachable(index: str) -> bool:
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=8):
            return True
    except OSError:
        return False


class Resolver:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = index_only()
        venv.create(folder / "venv", with_pip=True)
        self.python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
        # Only later versions leave the wheels where they are when nothing is to be installed.
        self.run("-m", "pip", "install", "--quiet", "--upgrade", "pip>=25")
        self.run("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
        (self.wheel,) = folder.glob("pathaware-*.whl")

    def run(self, *arguments: str) -> None:
        subprocess.run([self.python, *arguments], check=True, env=self.environment)

    def resolve(self, platform: str, version: str, build: str, constraints: bool) -> tuple[str, ...]:
        """One row of the table: where, which Python, what was found."""
        tags, system = PLATFORMS[platform]
        environment = system | {
            "python_version": version,
            "python_full_version": f"{version}.0",
            "implementation_version": f"{version}.0",
        }
        report = self.folder / f"{platform}-{version}-{build}-{constraints}.json".replace(" ", "-")
        extras = f"[{EXTRAS}]" if constraints else ""
        command: list[str | Path] = [
            self.python, "-c", ELSEWHERE, json.dumps(environment), "install", "--dry-run",
            "--ignore-installed", "--quiet", "--use-feature=fast-deps", "--only-binary=:all:",
            "--python-version", version,
            *itertools.chain(*(("--platform", tag) for tag in tags)), "--target", self.folder / "target",
            "--report", report, f"{self.wheel}{extras}",
        ]  # fmt: skip
        if constraints:
            command += ["-c", ROOT / "constraints.txt"]
        row = (platform, version, build, "constraints" if constraints else "wheel alone")
        if build == "cpu":
            if not reachable(CPU_INDEX):
                return *row, "-", "-", "-", "-", "PyTorch's own index cannot be reached"
            lines = (ROOT / "constraints.txt").read_text().splitlines()
            pinned = next(line for line in lines if line.startswith("torch=="))
            command += ["--extra-index-url", CPU_INDEX, f"{pinned}+cpu"]
        done = subprocess.run(command, check=False, env=self.environment, text=True, capture_output=True)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return *row, "-", "-", "-", "-", (errors or ["failed"])[-1]
        return *row, *self.found(json.loads(report.read_text())), "ok"

    def found(self, report: dict[str, Any]) -> Iterator[str]:
        packages = {item["metadata"]["name"].lower(): item for item in report["install"]}
        for name in ("torch", "triton"):
            yield packages[name]["metadata"]["version"] if name in packages else "none"
        yield str(len(packages))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            total = sum(pool.map(size, (item["download_info"]["url"] for item in packages.values())))
        yield f"{total / 1e6:,.0f} MB"


def table(rows: list[tuple[str, ...]]) -> str:
    head = ("platform", "Python", "build", "with", "torch", "triton", "packages", "download", "result")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="rows with this in them, such as `3.12 cpu`")
    parser.add_argument("--out", type=Path, help="write the table into this file, too")
    options = parser.parse_args()
    asked = [
        (platform, version, "index", constraints)
        for constraints in (True, False)
        for platform in PLATFORMS
        for version in PYTHONS
    ] + [("Linux x86_64", version, "cpu", True) for version in PYTHONS]
    asked = [row for row in asked if options.only in " ".join(row[:3])]
    with tempfile.TemporaryDirectory() as folder:
        resolver = Resolver(Path(folder))
        # They wait for the index most of the time.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            rows = list(pool.map(lambda row: resolver.resolve(*row), asked))
    text = table(rows)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    # PyTorch's own index may be out of reach where the package index is not.
    return int(any(row[-1] != "ok" for row in rows if row[2] != "cpu"))


if __name__ == "__main__":
    sys.exit(main())
