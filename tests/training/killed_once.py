"""`pathaware`, but the process of rank 1 dies at the iteration KILLED_AT when it runs for the first time."""

from __future__ import annotations

import os
import signal

from pathaware.cli import main
from pathaware.training.trainer import Trainer

_advance = Trainer.advance


def _dying(self):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and self.world.rank == 1 and self.iteration == int(os.environ["KILLED_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return _advance(self)


if __name__ == "__main__":
    Trainer.advance = _dying
    main()
