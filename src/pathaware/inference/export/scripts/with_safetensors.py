"""Weights in safetensors, put into the layers that the file lists."""

from collections.abc import Callable
from typing import Any


def opened(path: str) -> tuple[dict[str, Any], Callable[..., Any]]:
    """What the file says of itself, and the way from pixels `[N, C, size, size]` to probabilities."""
    import json

    import torch
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = {key: json.loads(text) for key, text in file.metadata().items()}
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    layers = [getattr(torch.nn, kind)(**arguments) for kind, arguments in about["layers"]]
    network = torch.nn.Sequential(*layers).float().eval().requires_grad_(False)
    network.load_state_dict(weights)
    return about, lambda images: network(torch.from_numpy(images).float()).numpy()
