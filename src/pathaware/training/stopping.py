"""Being asked to stop: finish the step, save, say how to go on."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

import torch

from pathaware.training.distributed import World

SECONDS_BETWEEN = 2.0
"""How often processes ask each other; torchrun gives them 30 s before it kills."""


class StopRequest:
    """While it is entered, SIGTERM and Ctrl-C are noted, not obeyed; a second Ctrl-C is obeyed at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signum: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python allows it nowhere else
            self.before = {each: signal.signal(each, self._note) for each in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self.before.items():
            signal.signal(each, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum


class AgreedStop:
    """A request that any process of a world hears stops all of them after the same iteration.

    They ask each other every few seconds, not after every step, which would cost more than the steps of small
    networks. How many iterations that is, the first process says, since clocks differ.
    """

    def __init__(self, request: StopRequest, world: World) -> None:
        self.request, self.world = request, world
        self.asked = time.perf_counter()
        self.between = self.left = 1

    def after_step(self) -> int | None:
        """The signal that ends training here, if there is one. To be called by all, after each iteration."""
        if self.world.size == 1:
            return self.request.signum
        self.left -= 1
        return self._ask() if self.left == 0 else None

    def _ask(self) -> int | None:
        now = time.perf_counter()
        affordable = SECONDS_BETWEEN * self.between / (now - self.asked)
        wanted = max(1, min(int(affordable), 2 * self.between))  # the first steps are slow, later ones may be
        answers = self.world.gather([torch.tensor([[self.request.signum or 0, wanted]])])
        self.asked = now
        self.between = self.left = int(answers[0, 1])
        return int(answers[:, 0].max()) or None
