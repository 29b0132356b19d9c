"""Random streams that depend on their names only, never on what was drawn before them."""

from __future__ import annotations

import zlib

import numpy as np
import torch

from pathaware.core.settings import at_least


def generator(seed: int, *stream: str | int) -> torch.Generator:
    """A CPU generator for one named stream, such as `generator(0, "train", iteration)`.

    A stream is a pure function of its name: iteration 1,000 draws the same tasks whether or not the
    999 before it ran in this process, which is what makes a resumed run repeat an unbroken one.
    """
    return torch.Generator().manual_seed(_state(seed, *stream))


def seed_all(seed: int, *stream: str | int) -> None:
    """Put PyTorch's own generators, of all devices, at the start of a stream: for what draws numbers while it
    computes, such as dropout."""
    torch.manual_seed(_state(seed, *stream))


def _state(seed: int, *stream: str | int) -> int:
    at_least(0, seed=seed)
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in stream]
    state = np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)[0]
    return int(state) & (2**63 - 1)
