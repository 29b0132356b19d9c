"""`pathaware`, except that rank 1 receives SIGNAL at iteration KILLED_AT of the first attempt."""

from __future__ import annotations

import os
import signal

from pathaware.cli import main
from pathaware.training.trainer import Trainer

_advance = Trainer.advance


def _dying(self):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and self.world.rank == 1 and self.iteration == int(os.environ["KILLED_AT"]):
        os.kill(os.getpid(), signal.Signals[os.environ["SIGNAL"]])
    return _advance(self)


if __name__ == "__main__":
    Trainer.advance = _dying
    main()
