"""Seconds that `photos` takes to learn and to label photographs."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pathaware.core.seeding import generator
from pathaware.inference.trained_model import SHIPPED, TrainedModel
from pathaware.training.checksummed import CHECKPOINT
from pathaware.training.provenance import write_record


def measure_time(results: Path) -> None:
    """Seconds to learn five classes of five photographs, and per further photograph.

    First CPU time of one core, which does not depend on what else the machine does; then wall-clock time on
    all cores, which must be idle.
    """
    torch.set_num_threads(1)
    found: dict[str, Any] = {f"{name}_cpu_s": value for name, value in timed(time.process_time).items()}
    torch.set_num_threads(os.cpu_count() or 1)
    found |= {f"{name}_wall_s": value for name, value in timed(time.perf_counter).items()}
    found["load_average"] = os.getloadavg()[0]
    size = sum(path.stat().st_size for path in (SHIPPED / "photos").iterdir())
    digest = hashlib.sha256((SHIPPED / "photos" / CHECKPOINT).read_bytes()).hexdigest()
    write_record(results / "photos-time.json", {**found, "model_bytes": size, "checkpoint_sha256": digest})
    print(found, size)


def timed(clock: Callable[[], float]) -> dict[str, float]:
    """Seconds by this clock, with a model that remembers nothing."""
    pixels = torch.randint(0, 256, (60, 3, 84, 84), dtype=torch.uint8, generator=generator(0, "time"))
    labels = torch.arange(5).repeat_interleave(5)
    model = TrainedModel.open("photos", "cpu")
    model.adapt(pixels[-10:], labels[:10] // 5, 2)  # opens what is opened once
    started = clock()
    adapted = model.adapt(pixels[:25], labels, 5)
    learning, labelling = clock() - started, []
    for i in range(25, 40):
        started = clock()
        adapted.probabilities(pixels[i : i + 1])
        labelling.append(clock() - started)
    started = clock()
    model.adapt(pixels[:25], labels, 5)
    return {
        "learn_25_photographs": learning,
        "learn_them_again": clock() - started,
        "label_one_photograph": sorted(labelling)[len(labelling) // 2],
    }
