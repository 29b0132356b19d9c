"""Stopping on request: finish the step, save, and tell how to resume."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

import torch

from pathaware.training.distributed import World

SECONDS_BETWEEN = 2.0
"""Seconds between two exchanges of stop requests. torchrun waits 30 s before it kills processes."""


class StopRequest:
    """A context in which SIGTERM and Ctrl-C are noted instead of obeyed. A second Ctrl-C stops at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signum: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # handlers can be set there only
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
    """Stops all processes of a world after the same iteration when any of them receives a request.

    They exchange requests every few seconds, since an exchange costs more than a step of a small network.
    Rank 0 decides how many iterations that is, because clocks differ.
    """

    def __init__(self, request: StopRequest, world: World) -> None:
        self.request, self.world = request, world
        self.exchanged = time.perf_counter()
        self.between = self.left = 1

    def after_step(self) -> int | None:
        """The signal that ends training here, if any. All ranks must call this after each iteration."""
        if self.world.size == 1:
            return self.request.signum
        self.left -= 1
        return self._exchange() if self.left == 0 else None

    def _exchange(self) -> int | None:
        now = time.perf_counter()
        affordable = SECONDS_BETWEEN * self.between / (now - self.exchanged)
        wanted = max(1, min(int(affordable), 2 * self.between))  # the first steps are slower
        requests = self.world.gather([torch.tensor([[self.request.signum or 0, wanted]])])
        self.exchanged = now
        self.between = self.left = int(requests[0, 1])
        return int(requests[:, 0].max()) or None
