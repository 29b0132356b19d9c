"""Write the learner itself to an ONNX file: a program that learns new classes without PyTorch.

The file maps support images, their labels and query images to probabilities, for a fixed number of classes
and of images per class. It contains the whole inner loop, with gradients written out by
`pathaware.engine.handwritten`; onnxruntime, which differentiates nothing, runs it.

Sums and means are in double precision. onnxruntime adds float32 values one after another, PyTorch pairwise:
over thousands of pixels that costs two decimal places, and a few tasks amplify it to several per cent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pathaware.core.errors import RunError, UsageError
from pathaware.core.learner import MetaLearner, require_path
from pathaware.core.writing import draft_folder, move
from pathaware.inference.export.export import TOLERANCE
from pathaware.inference.export.formats import metadata, quiet_tracing, require_package, write_proto
from pathaware.inference.trained_model import TrainedModel, arrange

CHECKED = 8
"""Random tasks that are compared before the file is written."""
MOST_SHOTS = 1000
"""Images per class; the file has an operation of that size for every step."""


class Learner(nn.Module):
    """Maps uint8 images `[S, C, size, size]`, labels `[S]` and queries `[N, C, size, size]` to probabilities.

    The support set has the same number of images of each class, in any order.
    """

    pixel_mean: Tensor
    pixel_scale: Tensor

    def __init__(self, learner: MetaLearner, model: TrainedModel, temperature: float) -> None:
        super().__init__()
        self.learner, self.temperature = learner, temperature
        form = model.image_input
        mean, std = (torch.tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (form.mean, form.std))
        self.register_buffer("pixel_mean", mean * 255)
        self.register_buffer("pixel_scale", 1 / (std * 255))

    def forward(self, support_images: Tensor, support_labels: Tensor, images: Tensor) -> Tensor:
        support_x, x = (
            (each.float() - self.pixel_mean) * self.pixel_scale for each in (support_images, images)
        )
        path = self.learner.path(support_x[None], support_labels[None])
        logits = self.learner.outputs_at(self.learner.end(path), x[None], support_x[None])[0]
        return (logits / self.temperature).softmax(-1)


@dataclass(frozen=True)
class ExportedLearner:
    """A file whose probabilities differ by at most `difference` from the package's on `tasks` tasks.

    On a task where single and double precision disagree, the nearer one counts.
    """

    path: Path
    ways: int
    shots: int
    bytes: int
    tasks: int
    difference: float


def export_learner(
    model: TrainedModel, ways: int, shots: int, path: Path, *, tasks: int = CHECKED
) -> ExportedLearner:
    """Write the learner for `ways` classes of `shots` images to `path`, after checking it on random tasks."""
    if path.suffix != ".onnx":
        raise UsageError(f"{path} must end in .onnx: a learner can only be exported to onnx", field="out")
    if not 1 <= shots <= MOST_SHOTS:
        raise UsageError(f"{shots} is not allowed; must be 1 to {MOST_SHOTS:,}", field="shots")
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require_package("onnx", package)
    learner = model.learner(ways)
    if learner.execution is None or learner.execution.program is None:
        raise UsageError(
            f"{model.config.method} with this network has no hand-written gradients, which onnx needs",
            field="learner",
        )
    temperature = model.calibration.temperature(ways, shots) if model.calibration else 1.0
    module = Learner(require_path(learner), model, temperature).eval().requires_grad_(False)
    shape = (ways * shots, *model.image_input.shape)
    labels = torch.arange(ways).repeat_interleave(shots)
    example = torch.zeros(shape, dtype=torch.uint8), labels, torch.zeros(2, *shape[1:], dtype=torch.uint8)
    with draft_folder(path.parent) as folder:
        draft = folder / path.name
        with quiet_tracing("onnx"), torch.no_grad():
            program = torch.onnx.export(
                module,
                example,
                input_names=["support_images", "support_labels", "images"],
                output_names=["probabilities"],
                dynamic_shapes=({}, {}, {0: "N"}),
                dynamo=True,
                verbose=False,
                optimize=False,  # takes minutes for thousands of operations; onnxruntime does it on loading
            )
            assert program is not None  # always the case with dynamo
            proto = sum_in_double(program.model_proto)
        about = {**metadata(model.image_input, ()), "ways": ways, "shots": shots}
        del about["classes"]
        size = model.image_input
        pixels = f"{size.channels}, {size.size}, {size.size}], 0 to 255"
        about["input"] = (
            f"support_images: uint8 [{ways * shots}, {pixels}; support_labels: int64 [{ways * shots}], "
            f"{shots} of each of 0 to {ways - 1}; images: uint8 [N, {pixels}"
        )
        about["output"] = f"probabilities: float32 [N, {ways}], in the order of the labels"
        write_proto(proto, about, draft)
        difference = largest_difference(model, draft, ways, shots, tasks)
        if not difference <= TOLERANCE:  # also true for nan
            raise RunError(
                f"{path}: not written, its probabilities differ by {difference:.1e} from the package's; "
                f"{TOLERANCE:.0e} is allowed"
            )
        move(draft, path, path.parent)
    return ExportedLearner(path, ways, shots, path.stat().st_size, tasks, difference)


def sum_in_double(proto: Any) -> Any:
    """Make every sum and mean of float32 over an axis of a graph compute in double precision."""
    from onnx import TensorProto, helper

    known = {value.name: value.type.tensor_type.elem_type for value in proto.graph.value_info}
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    for node in nodes:
        summed = node.op_type in ("ReduceMean", "ReduceSum")
        if not summed or known.get(node.output[0], TensorProto.FLOAT) != TensorProto.FLOAT:
            proto.graph.node.append(node)
            continue
        given, result = node.input[0], node.output[0]
        node.input[0], node.output[0] = f"{result}.given", f"{result}.double"
        proto.graph.node.append(helper.make_node("Cast", [given], [node.input[0]], to=TensorProto.DOUBLE))
        proto.graph.node.append(node)
        proto.graph.node.append(helper.make_node("Cast", [node.output[0]], [result], to=TensorProto.FLOAT))
    return proto


def open_learner(path: Path) -> Any:
    """Open an exported learner with onnxruntime: a function of support images, labels and images."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # no warnings about operations that it could not compute in advance
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def learn(
        support_images: NDArray[np.uint8], support_labels: NDArray[np.int64], images: NDArray[np.uint8]
    ) -> Any:
        inputs = {"support_images": support_images, "support_labels": support_labels, "images": images}
        return session.run(["probabilities"], inputs)[0]

    return learn


def largest_difference(model: TrainedModel, path: Path, ways: int, shots: int, tasks: int) -> float:
    """The largest difference of a probability from the package's, on tasks of random blots and of noise."""
    learn, differences = open_learner(path), []
    generator = torch.Generator().manual_seed(0)
    for task in range(tasks):
        support, queries = (
            _random_images(model, ways, count, generator, noise=task % 4 == 3) for count in (shots, 3)
        )
        labels = torch.arange(ways).repeat_interleave(shots)
        order = torch.randperm(len(labels), generator=generator)
        support, labels = support[order], labels[order]
        adapted = model.adapt(support, labels, ways)
        expected = adapted.probabilities(queries).numpy()
        order = arrange(support, labels, ways)  # the package's own: rounding depends on it
        support, labels = support[order], labels[order]
        found = learn(support.numpy(), labels.numpy(), queries.numpy())
        difference = float(np.abs(found - expected).max())
        if difference > TOLERANCE:
            logits = double_logits(model, support, labels, queries, ways)
            expected = (logits / adapted.temperature).softmax(-1).numpy()
            difference = min(difference, float(np.abs(found - expected).max()))
        differences.append(difference)
    return float(np.max(differences))


@torch.no_grad()
def double_logits(model: TrainedModel, support: Tensor, labels: Tensor, queries: Tensor, ways: int) -> Tensor:
    """The package's logits `[N, ways]` in double precision.

    A step can put an activation so close to the bend of a ReLU that rounding decides on which side it lies.
    The two precisions may then differ by more than is allowed, and a file must agree with one of them.
    """
    learner = model.build(ways, torch.float64)
    support_x, x = (
        model.image_input.normalised(each.to(model.device)).double()[None] for each in (support, queries)
    )
    y = labels.to(model.device)[None]
    return learner.predictions_per_step(support_x, y, x, queries="alone").outputs[-1][0].cpu()


def _random_images(
    model: TrainedModel, ways: int, count: int, generator: torch.Generator, *, noise: bool
) -> Tensor:
    """`count` images of each class: a coarse random pattern per class, distorted by noise, or noise alone."""
    channels, size, _ = model.image_input.shape
    shape = (ways, count, channels, size, size)
    grain = torch.rand(shape, generator=generator)
    if noise:
        return (255 * grain).byte().flatten(0, 1)
    coarse = torch.rand(ways, channels, 5, 5, generator=generator)
    pattern = nn.functional.interpolate(coarse, (size, size), mode="bilinear")[:, None]
    return (255 * (0.8 * pattern + 0.2 * grain)).byte().flatten(0, 1)
