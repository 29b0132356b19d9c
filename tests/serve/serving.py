"""A server in its own process, and helpers to observe it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from PIL import Image

from pathaware.data.glyphs import draw_class
from pathaware.inference.learning import learn, save_classifier
from pathaware.inference.trained_model import SupportSet, TrainedModel

ROOT = Path(__file__).parents[2]


@dataclass
class Server:
    address: str
    process: subprocess.Popen[str]
    folder: Path
    """Its working, home and temporary folder: whatever it writes should lie there."""

    def memory(self, what: str = "VmRSS") -> float:
        """In MiB; `VmHWM` is the peak since `forget_peak`."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{what}:\s+(\d+) kB", text)[1]) / 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def written(self) -> list[str]:
        """Files it has made, and files it has open for writing."""
        found = [str(p) for p in self.folder.rglob("*") if p.is_file()]
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                flags = Path(f"/proc/{self.process.pid}/fdinfo/{link.name}").read_text()
                target = os.readlink(link)
            except FileNotFoundError:  # closed by now
                continue
            mode = int(re.search(r"flags:\s+(\d+)", flags)[1], 8)
            if mode & (os.O_WRONLY | os.O_RDWR) and Path(target).is_file():
                found.append(target)
        return found


@contextmanager
def serving(
    folder: Path, *arguments: str, limits: dict[str, Any] | None = None, model: str = "glyphs"
) -> Iterator[Server]:
    """`pathaware serve MODEL …`, or with `limits` a server that has these."""
    command = ["-m", "pathaware", "serve", model, "--port", "0", "--device", "cpu", *arguments]
    if limits is not None:
        command = ["-m", "tests.serve.small_server", json.dumps(limits), *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
        "TMPDIR": str(folder),
    }
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.stderr.read())
        yield Server(re.search(r"http://\S+(?=/)", line)[0], process, folder)
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()
        process.stderr.close()


@contextmanager
def asking(folder: Path, *arguments: str, **options: Any) -> Iterator[tuple[Server, httpx.Client]]:
    """A server as of `serving`, and a client of it."""
    with (
        serving(folder, *arguments, **options) as server,
        httpx.Client(base_url=server.address, timeout=60) as client,
    ):
        yield server, client


def png(seed: int = 0, size: int = 28) -> bytes:
    """A picture like no other: some strokes on paper, different for every seed."""
    random = np.random.default_rng(seed)
    pixels = np.full((size, size), 255, np.uint8)
    for _ in range(3):
        row, column = random.integers(4, size - 8, 2)
        pixels[row : row + int(random.integers(2, 14)), column : column + int(random.integers(2, 14))] = 0
    return encoded(Image.fromarray(pixels))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def begin(client: httpx.Client) -> str:
    return "/api/sessions/" + client.post("/api/sessions").raise_for_status().json()["session"]


def teach(client: httpx.Client, session: str, label: str, picture: bytes) -> str:
    answer = client.post(f"{session}/pictures", params={"label": label}, content=picture)
    assert answer.status_code == 201, answer.text
    return answer.json()["picture"]


def taught_session(client: httpx.Client) -> str:
    """A session with two classes of one picture each."""
    session = begin(client)
    for seed, label in enumerate("ab", 1):
        teach(client, session, label, png(seed))
    return session


CHARACTERS = {"hourglass": "\u2d35", "fork": "\U00010319", "lattice": "\u2d4c"}


def drawings(name: str, count: int) -> list[bytes]:
    """PNG files of a character, dark on white."""
    return [encoded(Image.fromarray(255 - pixels)) for pixels in draw_class(CHARACTERS[name], count)[:, 0]]


def saved_classifier(folder: Path, count: int = 3) -> Path:
    """A classifier of so many pictures, one of `x` and the others of `y`, as `pathaware learn` saves it."""
    torch.set_default_dtype(torch.float32)
    model = TrainedModel.open("glyphs", "cpu")
    names = [str(number) for number in range(1, count + 1)]
    pixels = model.pixels([png(int(name)) for name in names])
    support = SupportSet(("x", "y"), pixels, torch.tensor([0] + [1] * (count - 1)))
    save_classifier(learn(model, support, names), model, folder)
    return folder
