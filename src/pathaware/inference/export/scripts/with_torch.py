"""A `torch.export` program, opened by PyTorch."""

from collections.abc import Callable
from typing import Any


def opened(path: str) -> tuple[dict[str, Any], Callable[..., Any]]:
    """What the file says of itself, and the way from pixels `[N, C, size, size]` to probabilities."""
    import json
    import warnings

    import torch

    extra: dict[str, Any] = {"about.json": ""}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")  # by PyTorch 2.11 itself
        program = torch.export.load(path, extra_files=extra).module()
    return json.loads(extra["about.json"]), lambda images: program(torch.from_numpy(images)).numpy()
