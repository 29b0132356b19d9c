"""`python -m pathaware_research.studies.photos`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from pathaware.training.provenance import revision
from pathaware_research.studies import photos
from pathaware_research.studies.photos.accuracy import choose, measure, measure_fixed, write_card
from pathaware_research.studies.photos.confidence import calibrate
from pathaware_research.studies.photos.speed import measure_time
from pathaware_research.studies.photos.training import ship, train, write_features

COMMANDS: dict[str, Callable[..., None]] = {
    "features": write_features,
    "choose": choose,
    "train": train,
    "ship": ship,
    "evaluate": measure,
    "fixed": measure_fixed,
    "calibrate": calibrate,
    "card": write_card,
    "time": measure_time,
}
READS_FEATURES = (choose, train, measure, measure_fixed, calibrate)


def main() -> None:
    """Run one command on its paths."""
    parser = argparse.ArgumentParser(
        "python -m pathaware_research.studies.photos",
        description=photos.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--features", type=Path)
    given = parser.parse_args()
    revision()  # of the code that runs, whatever is written meanwhile
    command = COMMANDS[given.what]
    features = (given.features,) if command in READS_FEATURES else ()
    command(*given.paths, *features)


if __name__ == "__main__":
    main()
