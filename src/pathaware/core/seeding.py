"""Named random streams, independent of what was drawn before."""

from __future__ import annotations

import zlib

import numpy as np
import torch

from pathaware.core.settings import at_least


def generator(seed: int, *stream: str | int) -> torch.Generator:
    """A CPU generator for one named stream, such as `generator(0, "train", iteration)`.

    A stream is a pure function of its name: iteration 1,000 draws the same tasks whether or not the 999
    iterations before it ran in this process. So a resumed run repeats an uninterrupted one.
    """
    return torch.Generator().manual_seed(_state(seed, *stream))


def fork(source: torch.Generator, stream: str) -> torch.Generator:
    """A generator that depends on the state of another one, which it does not advance."""
    state = source.get_state().numpy().tobytes()
    return torch.Generator().manual_seed(zlib.crc32(state, zlib.crc32(stream.encode())))


def seed_all(seed: int, *stream: str | int) -> None:
    """Seed PyTorch's global generators on all devices with a named stream, for layers such as dropout."""
    torch.manual_seed(_state(seed, *stream))


def _state(seed: int, *stream: str | int) -> int:
    at_least(0, seed=seed)
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in stream]
    state = np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)[0]
    return int(state) & (2**63 - 1)
