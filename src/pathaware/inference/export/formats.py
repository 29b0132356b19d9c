"""Formats of exported files: how each is written, and how it is opened without this package.

A file maps pixels to probabilities and carries metadata: classes, image size, and how to prepare an image.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pathaware.core import VERSION
from pathaware.core.batch_norm import FrozenBatchNorm
from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.writing import replace_file
from pathaware.data.pixels import ImageInput
from pathaware.inference.trained_model import AdaptedClassifier

Metadata = dict[str, Any]
Opened = tuple[Metadata, Callable[..., Any]]
"""Metadata, and a function from uint8 images `[N, C, size, size]` to probabilities `[N, classes]`."""

_PREPARATION = (
    "rotate the image as its EXIF orientation says",
    "take the upper 8 bits of 16-bit grey",
    "put transparent images on white",
    "convert to {mode}",
)
_WHOLE = "scale both sides to {size} pixels by Lanczos, ignoring the proportions"
_CROP = "cut out a square in the middle, {crop} of the shorter side, and scale it to {size} pixels by bicubic"
_INK = "if the median pixel along the four edges is above 127, invert: 255 - pixels"


def metadata(form: ImageInput, classes: Sequence[str]) -> Metadata:
    """Describe what a file's network expects and returns."""
    steps = [*_PREPARATION, _CROP if form.crop else _WHOLE, *([_INK] if form.ink else [])]
    mode = "grey (ITU-R 601-2 luma)" if form.channels == 1 else "RGB"
    return {
        "classes": list(classes),
        "size": form.size,
        "channels": form.channels,
        "ink": form.ink,
        "crop": form.crop,
        "preparation": [step.format(mode=mode, size=form.size, crop=form.crop) for step in steps],
        "input": f"images: uint8 [N, {form.channels}, {form.size}, {form.size}], 0 to 255",
        "output": f"probabilities: float32 [N, {len(classes)}], in the order of classes",
        "made_by": f"pathaware {VERSION}",
    }


def as_texts(about: Metadata) -> dict[str, str]:
    """Encode every value as JSON, for formats whose metadata are text."""
    return {key: json.dumps(value) for key, value in about.items()}


def from_texts(texts: Mapping[str, str]) -> Metadata:
    """Decode the metadata that `as_texts` encoded."""
    return {key: json.loads(text) for key, text in texts.items()}


class Classifier(nn.Module):
    """The exported module: maps images `[N, C, size, size]` in 0…255 to probabilities `[N, classes]`."""

    mean: Tensor
    scale: Tensor

    def __init__(self, network: nn.Module, form: ImageInput, temperature: float = 1.0) -> None:
        super().__init__()
        self.network, self.temperature = network, temperature
        mean, std = (torch.tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (form.mean, form.std))
        self.register_buffer("mean", mean * 255)
        self.register_buffer("scale", 1 / (std * 255))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((images.float() - self.mean) * self.scale)
        return (logits.float() / self.temperature).softmax(-1)


def classifier(adapted: AdaptedClassifier) -> Classifier:
    """Wrap a copy of the adapted network for export."""
    network = copy.deepcopy(adapted.network)
    return Classifier(network, adapted.image_input, adapted.temperature).eval().requires_grad_(False)


def example(form: ImageInput) -> Tensor:
    """Return two images to trace with; with one, tracing would treat the batch size as fixed."""
    return torch.zeros(2, *form.shape, dtype=torch.uint8)


def require_package(format: str, package: str) -> Any:
    """Import a package, or raise an error that says how to install it."""
    try:
        return import_module(package)
    except ImportError:
        raise UsageError(
            f"{format} needs {package}, which is not installed; in a clone of pathaware: pip install "
            f"'.[{format}]'",
            field="to",
        ) from None


_LOGGERS = ("torch.onnx", "torch.export", "torch._export", "onnxscript", "onnx_ir")


@contextmanager
def quiet_tracing(format: str) -> Iterator[None]:
    """Silence PyTorch's exporter, and turn whatever exception it raises into a one-line error."""
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
        raise UsageError(
            f"{format}: the adapted network cannot be traced ({reason.strip()})", field="to"
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def write_onnx(adapted: AdaptedClassifier, about: Metadata, path: Path) -> None:
    """Write an ONNX file, for onnxruntime and many other programs."""
    require_package("onnx", "onnx")
    with quiet_tracing("onnx"):
        program = torch.onnx.export(
            classifier(adapted),
            (example(adapted.image_input),),
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: "N"}},
            dynamo=True,
            verbose=False,
        )
        assert program is not None  # always the case with dynamo
        model = program.model_proto
    write_proto(model, about, path)


def write_proto(model: Any, about: Metadata, path: Path) -> None:
    """Check an ONNX model and write it with its metadata, without traces of where it was made."""
    onnx = require_package("onnx", "onnx")
    _remove_traces(model)
    onnx.helper.set_model_props(model, as_texts(about))
    onnx.checker.check_model(model, full_check=True)
    replace_file(path, model.SerializeToString())


def _remove_traces(model: Any) -> None:
    """Remove source lines and folder names, which are private and half of the file."""
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


def open_onnx(path: str) -> Opened:
    """Open an ONNX file with onnxruntime."""
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = from_texts(session.get_modelmeta().custom_metadata_map)
    return about, lambda images: session.run(["probabilities"], {"images": images})[0]


ABOUT = "about.json"


def write_torch(adapted: AdaptedClassifier, about: Metadata, path: Path) -> None:
    """Write a `torch.export` program, which PyTorch runs without the code of the network."""
    images = {0: torch.export.Dim("N")}
    with quiet_tracing("torch"):
        program = torch.export.export(
            classifier(adapted), (example(adapted.image_input),), dynamic_shapes={"images": images}
        )
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # contains names of local folders
        # Into memory first: on a full disk PyTorch's writer would abort the process.
        buffer = io.BytesIO()
        torch.export.save(program, buffer, extra_files={ABOUT: json.dumps(about)})
    replace_file(path, buffer.getvalue())


def open_torch(path: str) -> Opened:
    """Open a `torch.export` program."""
    extra: dict[str, Any] = {ABOUT: ""}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")  # by PyTorch 2.11 itself
        program = torch.export.load(path, extra_files=extra).module()
    return json.loads(extra[ABOUT]), lambda images: program(torch.from_numpy(images)).numpy()


_WINDOW = ("kernel_size", "stride", "padding")
LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
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
"""Supported layers and their constructor arguments, which are attributes of the same names."""


def write_safetensors(adapted: AdaptedClassifier, about: Metadata, path: Path) -> None:
    """Write weights and a list of the `torch.nn` layers they belong to.

    The first layer is a batch norm without weights that normalises pixels, the last one a softmax, so the
    chain of layers is complete. A temperature is a linear layer before the softmax.
    """
    from safetensors.torch import save

    network = classifier(adapted).network
    layers = [_normalise(adapted.image_input), *_chain(network)]
    if adapted.temperature != 1:
        layers.append(_scale(1 / adapted.temperature, len(about["classes"])))
    chain = nn.Sequential(*layers, nn.Softmax(dim=1)).eval()
    listed = [(type(layer).__name__, _arguments(layer)) for layer in chain]
    weights = {name: value.clone() for name, value in chain.state_dict().items()}  # weights may be tied
    replace_file(path, save(weights, metadata=as_texts({**about, "layers": listed})))


def _normalise(form: ImageInput) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(form.channels, affine=False)
    mean, std = (torch.tensor(v, dtype=torch.float32) * 255 for v in (form.mean, form.std))
    norm.running_mean, norm.running_var = mean, std.square() - norm.eps  # PyTorch 2.11 requires eps > 0
    return norm


def _scale(factor: float, outputs: int) -> nn.Linear:
    layer = nn.Linear(outputs, outputs, bias=False).requires_grad_(False)
    layer.weight.copy_(torch.eye(outputs) * factor)
    return layer


def _chain(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers in order. Types must match exactly, since a subclass may do anything."""
    if type(network) is nn.Sequential:
        for layer in network:
            yield from _chain(layer)
    elif type(network) is FrozenBatchNorm:
        yield from _chain(network.to_batch_norm())
    elif type(network) in LAYERS:
        yield network
    else:
        what = type(network).__name__
        raise UsageError(
            f"safetensors: the adapted network is not a plain chain of layers (it has {what}); "
            "use onnx or torch",
            field="to",
        )


def _arguments(layer: nn.Module) -> dict[str, Any]:
    values = {name: getattr(layer, name) for name in LAYERS[type(layer)]}
    return {
        name: value is not None if name == "bias" and not isinstance(value, bool) else value
        for name, value in values.items()
    }


def open_safetensors(path: str) -> Opened:
    """Build the listed layers and load their weights."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = from_texts(file.metadata())
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    layers = [getattr(nn, kind)(**arguments) for kind, arguments in about["layers"]]
    network = nn.Sequential(*layers).float().eval().requires_grad_(False)
    network.load_state_dict(weights)
    return about, lambda images: network(torch.from_numpy(images).float()).numpy()


@dataclass(frozen=True)
class Format:
    """A file format: how it is written and opened."""

    name: str
    suffix: str
    write: Callable[[AdaptedClassifier, Metadata, Path], None]
    open: Callable[[str], Opened]
    packages: tuple[str, ...]
    """Packages needed besides PyTorch, to write the file or to use it."""

    def require_packages(self) -> None:
        """Raise an error that names the first missing package."""
        for package in self.packages:
            require_package(self.name, package)


FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        Format("onnx", ".onnx", write_onnx, open_onnx, ("onnx", "onnxscript", "onnxruntime")),
        Format("torch", ".pt2", write_torch, open_torch, ()),
        Format("safetensors", ".safetensors", write_safetensors, open_safetensors, ("safetensors",)),
    )
}


def get_format(name: str) -> Format:
    """Return a format by name."""
    if name not in FORMATS:
        hint = did_you_mean(name, FORMATS)
        raise UsageError(f"must be one of {', '.join(FORMATS)}, not {name}{hint}", field="to")
    return FORMATS[name]
