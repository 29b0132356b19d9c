"""Computes what test_distribution.py compares between worlds of several sizes.

python -m tests.training.one_of_several FOLDER
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pathaware import MetaLearner, Pamela, Unrolled
from pathaware.core.batch_norm import FrozenBatchNorm, freeze_running_statistics
from pathaware.core.errors import UsageError
from pathaware.core.seeding import generator
from pathaware.core.settings import trust
from pathaware.data.episodes import Augmentation, ImageEpisodes
from pathaware.data.importing import in_memory
from pathaware.data.pixels import ImageFormat
from pathaware.models import conv4
from pathaware.training.config import Config
from pathaware.training.distributed import World, process_group
from pathaware.training.evaluation import evaluate
from pathaware.training.loop import Fit
from pathaware.training.meta_step import MetaStep, meta_step
from pathaware.training.meta_training import MetaTraining, build
from pathaware.training.run_folder import Run

SINE = {"name": "sine", "points": 20}


def config(method: str = "pamela", **training: Any) -> Config:
    return Config.from_dict(
        {
            "problem": SINE,
            "method": {"name": method},
            "training": {"iterations": 50, "dtype": "float64", "device": "cpu", "threads": 1, **training},
        }
    )


CASES = {
    "as many tasks for each": config(tasks=4, validate=25, validation_tasks=5),
    "tasks that cannot be shared evenly": config(tasks=5, histograms=20, validate=25, validation_tasks=1),
    "fewer tasks than processes": config(tasks=1, histograms=20),
    "chunks and clipping": config("meta-sgd", tasks=7, chunk=2, clip=0.01),
    "reptile": config("reptile", tasks=5, rate=1e-2),
    "single precision": config(tasks=5, dtype="float32", iterations=30),
}


def trained(settings: Config, world: World) -> dict[str, Any]:
    """Parameters, log entries and histograms of a run."""
    fit = Fit(MetaTraining(settings, world), world=world)
    fit.objective.log_every = 7
    reports = []
    while not fit.done:
        progress = fit.advance()
        if progress:
            said = asdict(progress).items()
            reports.append({k: v for k, v in said if k != "seconds" and v is not None})
    seen = fit.objective.histograms
    return {
        "parameters": torch.cat([p.detach().flatten() for p in fit.objective.learner.parameters()]),
        "reports": reports,
        "counts": torch.stack(seen.counts) if seen else None,
    }


def with_images(world: World) -> torch.Tensor:
    """Parameters after a few iterations on cropped images of noise."""
    noise = torch.randint(256, (5, 6, 1, 16, 16), dtype=torch.uint8, generator=generator(0, "noise")).numpy()
    store = in_memory("noise", [(f"c{i}", "train", x) for i, x in enumerate(noise)], ImageFormat(16, 1), "")
    torch.manual_seed(0)
    model = conv4(3, size=16, channels=1, width=4, blocks=2)
    learner = MetaLearner(model, Pamela(model, 2, skip=1), F.cross_entropy).to(dtype=torch.float64)
    source = ImageEpisodes(store, "train", 3, 1, 2, Augmentation(crop=True, jitter=0.4), dtype=torch.float64)
    step = MetaStep(learner, Unrolled(), source, rate=1e-2, world=world)
    for i in range(5):
        step(source.draw(3, generator(0, "train", i)), 1e-2)
    return torch.cat([p.detach().flatten() for p in step.parameters])


def evaluated(world: World, tasks: int) -> dict[str, Any]:
    settings = config()
    return evaluate(build(settings), settings.problem, tasks=tasks, batch=9, world=world).summary()


def with_a_bad_task(world: World) -> dict[str, Any]:
    """The last task of the batch, which is the last rank's, has a non-finite gradient."""
    settings = config(tasks=4)
    source = settings.problem.tasks("train", "cpu", torch.float64)
    step = meta_step(settings.training, build(settings), source, world=world)
    plan = step.source.draw(4, generator(0, "train", 0))
    plan.query_y[-1] = float("nan")
    before = [p.detach().clone() for p in step.parameters]
    skipped = step(plan, 1e-2).skipped.item()
    same = all(torch.equal(a, b) for a, b in zip(before, step.parameters, strict=True))
    return {"skipped": skipped, "unchanged": same}


def refused(world: World) -> str:
    """The error on each rank if rank 0 raises."""

    def refuse() -> None:
        raise UsageError("no", field="out")

    try:
        world.from_writer(refuse)
    except (UsageError, SystemExit) as error:
        return repr(error)
    return "not at all"


def from_different_starts(world: World) -> torch.Tensor:
    """The parameters of ranks with different initialisations, once equalised."""
    parameter = torch.full((3,), float(world.rank + 7))
    world.equalise([parameter])
    return parameter


def with_running_statistics(world: World, folder: Path) -> dict[str, Any]:
    """A learner whose model has buffers, as every rank loads it after training: state and evaluation."""
    problem = {"name": "classification", "data": "glyphs", "ways": 3, "shots": 1, "queries": 2, "width": 4}
    problem["model_name"] = f"{__name__}:normalised"
    tables = {"problem": problem, "method": {"name": "prototypical"}, "training": {"device": "cpu"}}
    trust(tables)
    run = Run(folder / f"loaded-{world.size}", Config.from_dict(tables))
    if world.is_writer:
        run = Run.create(run.folder, run.config)
        learner = build(run.config)
        for norm in (m for m in learner.modules() if isinstance(m, FrozenBatchNorm)):
            norm.running_mean.add_(0.3)
            norm.running_var.mul_(4.0)
        run.save(learner, 1)
    learner = run.trained(world)
    result = evaluate(learner, run.config.problem, tasks=6, queries="alone", world=world)
    return {"state": learner.state_dict(), "result": result.values}


def normalised(ways: int, size: int, channels: int, width: int) -> nn.Module:
    return freeze_running_statistics(conv4(ways, size=size, channels=channels, width=width), all_norms=True)


def everything(world: World, folder: Path) -> dict[str, Any]:
    return {
        **{name: trained(settings, world) for name, settings in CASES.items()},
        "images": with_images(world),
        "evaluations": [evaluated(world, tasks) for tasks in (230, 3)],
        "bad task": with_a_bad_task(world),
        "refused": refused(world),
        "start": from_different_starts(world),
        "buffers": with_running_statistics(world, folder),
    }


def one(rank: int, size: int, port: int, folder: Path) -> None:
    """Run one rank and save its results to a file."""
    if size > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
        os.environ.update({"MASTER_ADDR": "127.0.0.1", **{k: str(v) for k, v in names.items()}})
    with process_group(config().training) as world:
        torch.save(everything(world, folder), folder / f"{size}-{rank}.pt")


def main(folder: Path, sizes: list[int]) -> None:
    import torch._dynamo

    torch.set_num_threads(1)
    forking = multiprocessing.get_context("fork")
    for size in sizes:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = [forking.Process(target=one, args=(rank, size, port, folder)) for rank in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * size


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]])
