"""Weights in safetensors, and the layers they belong to as a list: nothing but `torch.nn` is needed.

Pixels are normalised by a first batch norm without weights, and a softmax comes last, so that the chain is
all there is to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pathaware.datasets.pictures import PictureForm
from pathaware.errors import UsageError
from pathaware.use.export.about import About, as_texts
from pathaware.use.export.classifier import classifier
from pathaware.use.model import Adapted

_WINDOW = ("kernel_size", "stride", "padding")
KINDS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv2d: (*_WINDOW, "in_channels", "out_channels", "dilation", "groups", "bias", "padding_mode"),
    nn.BatchNorm2d: ("num_features", "eps", "affine"),
    nn.GroupNorm: ("num_groups", "num_channels", "eps", "affine"),
    nn.ReLU: (),
    nn.LeakyReLU: ("negative_slope",),
    nn.GELU: ("approximate",),
    nn.Tanh: (),
    nn.Dropout: ("p",),
    nn.MaxPool2d: (*_WINDOW, "dilation", "ceil_mode"),
    nn.AvgPool2d: (*_WINDOW, "ceil_mode", "count_include_pad", "divisor_override"),
    nn.AdaptiveAvgPool2d: ("output_size",),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.Linear: ("in_features", "out_features", "bias"),
    nn.Identity: (),
    nn.Softmax: ("dim",),
}
"""Layers that can stand in the list, and the arguments that make them: attributes of the same names."""


def write_safetensors(adapted: Adapted, about: About, path: Path) -> None:
    from safetensors.torch import save

    network = classifier(adapted).network
    chain = nn.Sequential(_normalise(adapted.pictures), *_chain(network), nn.Softmax(dim=1)).eval()
    layers = [(type(layer).__name__, _arguments(layer)) for layer in chain]
    weights = {name: value.clone() for name, value in chain.state_dict().items()}  # tied ones one by one
    path.write_bytes(save(weights, metadata=as_texts({**about, "layers": layers})))


def _normalise(form: PictureForm) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(form.channels, affine=False)
    mean, std = (torch.tensor(v, dtype=torch.float32) * 255 for v in (form.mean, form.std))
    norm.running_mean, norm.running_var = mean, std.square() - norm.eps  # PyTorch 2.11 wants some eps
    return norm


def _chain(network: nn.Module) -> Iterator[nn.Module]:
    """The layers one after another; exact types, since a class made from one of them may do anything."""
    if type(network) is nn.Sequential:
        for layer in network:
            yield from _chain(layer)
    elif type(network) in KINDS:
        yield network
    else:
        what = type(network).__name__
        raise UsageError(
            f"--to safetensors: the adapted network is no plain chain of layers (it has {what}); "
            "use --to onnx or --to torch"
        )


def _arguments(layer: nn.Module) -> dict[str, Any]:
    found = {name: getattr(layer, name) for name in KINDS[type(layer)]}
    return {
        name: value is not None if name == "bias" and not isinstance(value, bool) else value
        for name, value in found.items()
    }
