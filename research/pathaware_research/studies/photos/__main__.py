"""`python -m pathaware_research.studies.photos`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from pathaware.training.provenance import revision
from pathaware_research.studies import photos
from pathaware_research.studies.photos.accuracy import choose, compare_drawn, measure
from pathaware_research.studies.photos.reference import compare
from pathaware_research.studies.photos.shipping import ship
from pathaware_research.studies.photos.speed import measure_time
from pathaware_research.studies.photos.tasks import write

COMMANDS: dict[str, Callable[..., None]] = {
    "features": write,
    "choose": choose,
    "ship": ship,
    "evaluate": measure,
    "drawn": compare_drawn,
    "time": measure_time,
    "reference": compare,
}


def main() -> None:
    """Run one command on its paths."""
    parser = argparse.ArgumentParser(
        "python -m pathaware_research.studies.photos",
        description=photos.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("paths", nargs="+", type=Path)
    given = parser.parse_args()
    revision()  # of the code that runs, whatever is written meanwhile
    COMMANDS[given.what](*given.paths)


if __name__ == "__main__":
    main()
