"""MAML whose steps wait while the file named by the environment variable `HOLD` exists.

A test that interrupts a sweep holds its runs for as long as it needs, without using the processor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from torch import Tensor

from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method

SECONDS = 0.1


class Held(GradientDescent):
    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        if os.path.exists(os.environ.get("HOLD", "")):
            time.sleep(SECONDS)
        return super().step(j, points, gradient)


METHOD = Method("held", "waits between its steps", "none", 2024, Held)
