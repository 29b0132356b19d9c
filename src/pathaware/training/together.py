"""One run by all processes of a world: the first keeps it, the others compute along."""

from __future__ import annotations

from pathlib import Path

from pathaware.few_shot import FewShotLearner
from pathaware.training.config import Config
from pathaware.training.distribution import World
from pathaware.training.run import CONFIG, Run
from pathaware.training.session import check, reports_every, train_sessions
from pathaware.training.stopping import AgreedStop, StopRequest
from pathaware.training.trainer import Trainer, build


def train_together(
    config: Config, folder: Path, world: World, *, quiet: bool = False, going_on: bool = False
) -> Run:
    """Train `config` in `folder`, which the writer alone reads and writes.

    The folder must be new, unless `going_on`. Where processes that die are started again, it may also hold
    this very run, which then goes on from its last saved state, or is left as it is if it was complete.
    """
    run, finished = world.from_writer(lambda: _opened(config, folder, going_on or world.restarts))
    if finished:
        return run
    if world.is_writer:
        train_sessions([run], quiet=quiet, world=world)
    else:
        compute_along(config, world)
    return run


def compute_along(config: Config, world: World) -> None:
    """Do the share of a process that keeps nothing; it stops where the writer stops, and in silence."""
    with StopRequest() as request:
        stop = AgreedStop(request, world)
        trainer = Trainer(config, every=reports_every(config.training), world=world)
        while not trainer.done:
            trainer.advance()
            signum = stop.after_step()
            if signum is not None:
                raise SystemExit(128 + signum)


def trained(run: Run, world: World) -> FewShotLearner:
    """What the run came to, in every process."""
    learner = run.load(run.config.training.device) if world.is_writer else build(run.config)
    world.equalise(list(learner.parameters()))
    return learner


def _opened(config: Config, folder: Path, going_on: bool) -> tuple[Run, bool]:
    """The run to train, and whether there is nothing left to do."""
    check(config)
    if going_on and (folder / CONFIG).exists():
        run = Run.open(folder)
        if run.config == config:
            return run, run.finished
    return Run.create(folder, config), False
