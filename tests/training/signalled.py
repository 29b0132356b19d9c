"""`pathaware`, except that rank 1 receives a signal in each of the first attempts.

`SIGNALS="SIGKILL@12 SIGTERM@20"` kills it at iteration 12 of the first and stops it at 20 of the second.
"""

from __future__ import annotations

import os
import signal

from pathaware.cli import main
from pathaware.training.loop import Fit

_advance = Fit.advance


def _signalled(self):
    planned = os.environ["SIGNALS"].split()[int(os.environ["TORCHELASTIC_RESTART_COUNT"]) :]
    if planned and self.world.rank == 1:
        name, iteration = planned[0].split("@")
        if self.iteration == int(iteration):
            os.kill(os.getpid(), signal.Signals[name])
    return _advance(self)


if __name__ == "__main__":
    Fit.advance = _signalled
    main()
