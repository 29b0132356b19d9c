"""CPU seconds that `photos` takes to learn and to label photographs."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from pathaware.core.seeding import generator
from pathaware.inference.trained_model import SHIPPED, TrainedModel
from pathaware.training.provenance import write_record

CLASSES, EACH, SIDES = 3, 8, (500, 375)
BATCH = 48


def measure_time(results: Path) -> None:
    """CPU seconds of one thread, which depend less on what else the machine does than the time of a clock."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = made_up_photographs(folder / "things")
        model = TrainedModel.open("photos", "cpu")
        labels = torch.arange(CLASSES).repeat_interleave(EACH)
        started = time.process_time()
        pixels = model.pixels(paths)
        decoded = time.process_time()
        adapted = model.adapt(pixels, labels, CLASSES)
        learned = time.process_time()
        model.adapt(pixels, labels, CLASSES)
        again = time.process_time()
        found: dict[str, Any] = {
            "pictures": len(paths),
            "decode_each_cpu_s": (decoded - started) / len(paths),
            "learn_cpu_s": learned - decoded,
            "learn_again_cpu_s": again - learned,
        }
        started = time.process_time()
        noise = torch.randint(0, 256, (BATCH, *pixels.shape[1:]), generator=generator(0, "time"))
        adapted.probabilities(noise.byte())
        found["label_each_cpu_s"] = (time.process_time() - started) / BATCH + found["decode_each_cpu_s"]
        environment = {**os.environ, "PATHAWARE_CACHE": str(folder / "cache")}
        for run in ("command_learn_cpu_s", "command_learn_again_cpu_s"):
            before = children()
            command = [sys.executable, "-m", "pathaware", "learn", "things", "--replace"]
            subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
            found[run] = children() - before
    size = sum(path.stat().st_size for path in (SHIPPED / "photos").iterdir())
    write_record(results / "photos-time.json", {**found, "model_bytes": size})
    print(found, size)


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def made_up_photographs(folder: Path) -> list[Path]:
    """Files of coloured noise, as large as photographs on the web."""
    random, paths = generator(0, "photographs"), []
    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True)
        for i in range(EACH):
            small = torch.randint(0, 256, (12, 16, 3), generator=random, dtype=torch.uint8)
            small[..., label] |= 128
            path = folder / str(label) / f"{i}.jpg"
            Image.fromarray(small.numpy()).resize(SIDES, Image.Resampling.BICUBIC).save(path, quality=90)
            paths.append(path)
    return paths
