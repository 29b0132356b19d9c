"""What an exported file says of itself: all that a stranger needs to use it."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pathaware.core import VERSION
from pathaware.core.errors import UsageError
from pathaware.data.pixels import ImageInput
from pathaware.inference.export.scripts import with_onnx, with_safetensors, with_torch
from pathaware.inference.trained_model import Adapted

About = dict[str, Any]

_PREPARATION = (
    "turn the picture as its EXIF orientation says",
    "of grey with 16 bits, take the upper 8",
    "put what is transparent on white",
    "convert to {mode}",
    "scale both sides to {size} pixels by Lanczos, whatever the proportions",
)
_INK = "if the median pixel along the four edges is above 127, invert: 255 - pixels"


def about(form: ImageInput, classes: Sequence[str]) -> About:
    steps = [*_PREPARATION, _INK] if form.ink else _PREPARATION
    mode = "grey (ITU-R 601-2 luma)" if form.channels == 1 else "RGB"
    return {
        "classes": list(classes),
        "size": form.size,
        "channels": form.channels,
        "ink": form.ink,
        "preparation": [step.format(mode=mode, size=form.size) for step in steps],
        "input": f"images: uint8 [N, {form.channels}, {form.size}, {form.size}], 0 to 255",
        "output": f"probabilities: float32 [N, {len(classes)}], in the order of classes",
        "made_by": f"pathaware {VERSION}",
    }


def as_texts(about: About) -> dict[str, str]:
    """For files that keep text only: every value as JSON."""
    return {key: json.dumps(value) for key, value in about.items()}


# From pixels to probabilities in one module: what is exported.


class Classifier(nn.Module):
    """`images [N, C, size, size]` in 0…255 to probabilities `[N, classes]`, each picture by itself."""

    mean: Tensor
    scale: Tensor

    def __init__(self, network: nn.Module, form: ImageInput) -> None:
        super().__init__()
        self.network = network
        mean, std = (torch.tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (form.mean, form.std))
        self.register_buffer("mean", mean * 255)
        self.register_buffer("scale", 1 / (std * 255))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((images.float() - self.mean) * self.scale)
        return logits.float().softmax(-1)


def classifier(adapted: Adapted) -> Classifier:
    """Of a copy of the network, to be changed at will."""
    network = copy.deepcopy(adapted.network)
    return Classifier(network, adapted.pictures).eval().requires_grad_(False)


def example(form: ImageInput) -> Tensor:
    """Two pictures to trace with: of one, tracing would take the number for fixed."""
    return torch.zeros(2, *form.shape, dtype=torch.uint8)


# Packages that only one format needs.


def needed(format: str, package: str) -> Any:
    """The package, or a line that says how to get it."""
    try:
        return import_module(package)
    except ImportError:
        raise UsageError(
            f"--to {format}: needs {package}, which is not installed; pip install 'pathaware[{format}]'"
        ) from None


# Exporters are chatty, and meet what they cannot trace with many kinds of exception.


_LOGGERS = ("torch.onnx", "torch.export", "torch._export", "onnxscript", "onnx_ir")


@contextmanager
def untraceable_refused(format: str) -> Iterator[None]:
    """No notes about packages and deprecations of the exporter's own; a refusal in one line if it fails."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except OSError:
        raise
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UsageError(f"--to {format}: the adapted network cannot be traced ({reason.strip()})") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# An ONNX file, for onnxruntime and many others.


def write_onnx(adapted: Adapted, about: About, path: Path) -> None:
    onnx = needed("onnx", "onnx")
    with untraceable_refused("onnx"):
        program = torch.onnx.export(
            classifier(adapted),
            (example(adapted.pictures),),
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: "N"}},
            dynamo=True,
            verbose=False,
        )
        assert program is not None  # as it always is with dynamo
        model = program.model_proto
    _forget_origin(model)
    onnx.helper.set_model_props(model, as_texts(about))
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def _forget_origin(model: Any) -> None:
    """Lines of our source, and the folders it lies in, are nobody's business and half of the file."""
    graph = model.graph
    for part in (
        model,
        graph,
        *graph.node,
        *graph.input,
        *graph.output,
        *graph.value_info,
        *graph.initializer,
    ):
        del part.metadata_props[:]
        part.doc_string = ""


# A `torch.export` program, which PyTorch runs without the code of the network.


ABOUT = "about.json"


def write_torch(adapted: Adapted, about: About, path: Path) -> None:
    images = {0: torch.export.Dim("N")}
    with untraceable_refused("torch"):
        program = torch.export.export(
            classifier(adapted), (example(adapted.pictures),), dynamic_shapes={"images": images}
        )
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # names folders of whoever exports
        torch.export.save(program, path, extra_files={ABOUT: json.dumps(about)})


# Weights in safetensors, and the layers they belong to as a list: nothing but `torch.nn` is needed.
#
# Pixels are normalised by a first batch norm without weights, and a softmax comes last, so that the chain is
# all there is to it.


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


def _normalise(form: ImageInput) -> nn.BatchNorm2d:
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


# The formats by name.


@dataclass(frozen=True)
class Format:
    """How a file is written, and how a stranger opens it."""

    name: str
    suffix: str
    write: Callable[[Adapted, About, Path], None]
    opened: Callable[[str], tuple[dict[str, Any], Callable[..., Any]]]
    packages: tuple[str, ...]
    """What it needs besides PyTorch, here or where the file is used."""

    def refuse_if_packages_are_missing(self) -> None:
        for package in self.packages:
            needed(self.name, package)


FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        Format("onnx", ".onnx", write_onnx, with_onnx.opened, ("onnx", "onnxscript", "onnxruntime")),
        Format("torch", ".pt2", write_torch, with_torch.opened, ()),
        Format("safetensors", ".safetensors", write_safetensors, with_safetensors.opened, ("safetensors",)),
    )
}


def format_called(name: str) -> Format:
    if name not in FORMATS:
        raise UsageError(f"--to {name}: must be {', '.join(FORMATS)}")
    return FORMATS[name]
