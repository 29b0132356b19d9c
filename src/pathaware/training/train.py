"""Train a configuration in a run folder: new or resumed, in one process or in many."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pathaware.core.errors import Stopped, UsageError
from pathaware.training.config import Config, differences
from pathaware.training.distributed import ALONE, World
from pathaware.training.loop import QUIET, Fit, MakeDisplay, run_to_end
from pathaware.training.meta_training import MetaTraining
from pathaware.training.run_files import CONFIG, must_exist
from pathaware.training.run_folder import Run


def default_folder(config: Config) -> Path:
    """The folder of a run whose user named none, such as `runs/sine-k10-pamela-seed0`."""
    method = config.method.replace(":", "-")  # a plug-in is named module:METHOD
    return Path("runs") / f"{config.problem.label}-{method}-seed{config.training.seed}"


def train(
    config: Config,
    folder: Path | None = None,
    *,
    resume: bool = False,
    world: World = ALONE,
    display: MakeDisplay = QUIET,
) -> Run:
    """Train a configuration in a folder, and return the finished run.

    The folder must be new, unless `resume` is set or failed processes are restarted automatically; then it
    may hold this run, which resumes from its last state, or is left as it is if it is finished. All ranks of
    a world train; only rank 0 reads and writes the folder. On SIGTERM or Ctrl-C the step is finished, the
    state is saved and `Stopped` is raised, but not after the very last step, since the run is complete.
    `display=ProgressDisplay` shows progress.

    >>> import tempfile
    >>> tables = {"problem": {"name": "sine"}, "method": {"name": "maml"}, "training": {"iterations": 2}}
    >>> run = train(Config.from_dict(tables), Path(tempfile.mkdtemp()) / "run")
    >>> run.finished, len(list(run.metrics()))
    (True, 2)
    """
    place = folder or default_folder(config)
    begun, finished = world.from_writer(lambda: _begun(config, place, resume or world.restarts))
    if begun is not None and finished:
        if world.is_writer:
            begun.tidy()
        return begun
    objective = world.writer_first(
        lambda: MetaTraining(config, world) if begun else MetaTraining(config, world).try_out()
    )
    run = begun or world.from_writer(lambda: Run.create(place, config))
    written = run if world.is_writer else None
    try:
        run_to_end(Fit(each, written, world=world, display=display) for each in [objective])
    except Stopped:
        if not world.from_writer(lambda: run.finished):
            raise
    if not config.training.dropout:  # whose layers evaluation does without
        objective.learner.zero_grad()
        run.built = objective.learner
    return run


def open_to_resume(folder: Path, given: Mapping[str, Mapping[str, Any]]) -> Run:
    """Open a run to resume. Settings that are `given` must be those of the run."""
    must_exist(folder, "resume")
    run = Run.open(folder)
    tables = run.config.to_dict()
    for table, values in given.items():
        tables[table].update(values)
    found = differences(run.config, Config.from_dict(tables))
    if found:
        raise UsageError(f"{folder} was started with other settings: {found}", field="resume")
    return run


def _begun(config: Config, folder: Path, resume: bool) -> tuple[Run | None, bool]:
    """The run of this configuration in a folder, if it is to be resumed, and True if it is finished."""
    if resume and (folder / CONFIG).exists():
        run = Run.open(folder)
        if run.config == config:
            return run, run.finished
    return None, False  # `Run.create` refuses a folder with another run
