"""What commands have in common that adapt a run to somebody's own pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathaware.use.folders import Support
    from pathaware.use.model import Adapted, TrainedModel


def read_support(source: Path, model: TrainedModel) -> Support:
    """The labelled pictures; if some cannot be used, all of those are named."""
    from pathaware.use import folders

    try:
        return folders.read_support(source, model.pictures)
    except folders.SupportRefused as refused:
        if len(refused.problems) > 1:  # a single one is the error itself
            say_all(refused.problems)
        raise


def adapt(model: TrainedModel, support: Support) -> Adapted:
    return model.adapt(support.pixels, support.labels, len(support.classes))


def say_all(problems: tuple[str, ...] | list[str]) -> None:
    """On stderr, a line each, with nothing in it that a terminal would obey."""
    from pathaware.cli import one_line

    for problem in problems:
        print(one_line(problem), file=sys.stderr)
