"""An exported file gives the probabilities of the package, for every method."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pathaware.core.errors import RunError, UsageError
from pathaware.core.head import Head
from pathaware.inference.export import formats as module
from pathaware.inference.export.export import export
from pathaware.inference.export.formats import FORMATS
from pathaware.inference.trained_model import AdaptedClassifier
from pathaware.methods import METHODS
from tests.inference.models import INK, PHOTO, model, pixels

CLASSES = ("a", "b", "ç")
LABELS = torch.tensor([0, 0, 0, 1, 1, 2])
HEADS = [name for name, method in METHODS.items() if issubclass(method.adapter, Head)]


def adapted(method: str = "pamela", inputs=INK, **problem) -> AdaptedClassifier:
    if method in ("metal", "gap"):  # a small network of theirs takes no other number of classes
        problem["ways"] = 3
    return model(method, inputs, **problem).adapt(pixels(6, inputs), LABELS, 3)


def exported(to: str, folder: Path, method: str = "pamela", inputs=INK, **problem) -> Path:
    path = folder / f"net{FORMATS[to].suffix}"
    done = export(adapted(method, inputs, **problem), CLASSES, pixels(6, inputs), path, to)
    assert done.difference < 1e-5
    assert done.images > 6
    assert done.bytes == path.stat().st_size
    assert [p.name for p in folder.iterdir()] == [path.name]
    return path


OF_EACH_KIND = ("pamela", "prototypical", "mann", "lstm", "meta-networks")
LONG = [("onnx", method) for method in METHODS if method not in OF_EACH_KIND]


@pytest.mark.parametrize(
    ("to", "method"),
    [
        *(("torch", method) for method in METHODS),
        *(("onnx", method) for method in OF_EACH_KIND),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG),
    ],
)
def test_every_method_can_be_exported(to, method, tmp_path):
    exported(to, tmp_path, method)


@pytest.mark.parametrize("method", METHODS)
def test_chains_are_exported_to_safetensors_and_others_refused_with_what_to_use(method, tmp_path):
    if method not in HEADS:
        exported("safetensors", tmp_path, method)
        return
    with pytest.raises(UsageError, match=r"to: safetensors: .* not a plain chain .* use onnx or torch"):
        exported("safetensors", tmp_path, method)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", FORMATS)
def test_colour_pictures_of_another_size_can_be_exported(to, tmp_path):
    exported(to, tmp_path, inputs=PHOTO)


@pytest.mark.parametrize(
    ("to", "method", "settings"),
    [
        ("safetensors", "pamela", {}),
        ("safetensors", "maml", {"inputs": PHOTO}),
        ("torch", "pamela", {"inputs": PHOTO, "model_name": "resnet12"}),
        ("torch", "prototypical", {}),
        ("onnx", "pamela", {}),
    ],
)
def test_models_with_constant_statistics_and_class_means_can_be_exported(to, method, settings, tmp_path):
    exported(to, tmp_path, method, recipe=True, **settings)


def test_a_network_with_shortcuts_is_no_chain_but_can_be_exported_otherwise(tmp_path):
    exported("torch", tmp_path, inputs=PHOTO, model_name="resnet12")
    with pytest.raises(UsageError, match="it has ResidualBlock"):
        exported("safetensors", tmp_path, inputs=PHOTO, model_name="resnet12")


def test_a_chain_of_one_s_own_is_listed_with_the_arguments_of_its_layers(tmp_path):
    network = nn.Sequential(
        nn.Sequential(
            nn.Conv2d(1, 4, 5, stride=2, dilation=2, groups=1, bias=False), nn.GroupNorm(2, 4, eps=0.1)
        ),
        nn.LeakyReLU(0.3),
        nn.AvgPool2d(3, stride=2, ceil_mode=True),
        nn.Conv2d(4, 4, 3, padding="same", padding_mode="reflect", groups=2),
        nn.GELU("tanh"),
        nn.MaxPool2d(2, ceil_mode=True, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d((2, 1)),
        nn.Identity(),
        nn.Flatten(),
        nn.Dropout(0.9),
        nn.Linear(8, 3, bias=False),
    )
    own = AdaptedClassifier(network.float().eval(), model().image_input)
    done = export(own, CLASSES, pixels(6), tmp_path / "own.safetensors", "safetensors")
    assert done.difference < 1e-5


@pytest.mark.parametrize("to", FORMATS)
def test_a_file_says_what_it_is_and_not_where_it_was_made(to, tmp_path):
    path = exported(to, tmp_path)
    about, answer = FORMATS[to].open(str(path))
    assert about["classes"] == list(CLASSES)
    assert (about["size"], about["channels"], about["ink"]) == (28, 1, True)
    assert "Lanczos" in " ".join(about["preparation"])
    assert "invert" in about["preparation"][-1]
    found = answer(pixels(5).numpy())
    assert found.dtype == np.float32
    assert np.allclose(found.sum(1), 1, atol=1e-6)
    content = path.read_bytes()
    for private in (str(Path(module.__file__).parent), "stack_trace", str(tmp_path)):
        assert private.encode() not in content


def test_an_onnx_file_is_one_file_with_named_ends_and_any_number_of_pictures(tmp_path):
    import onnx

    loaded = onnx.load(exported("onnx", tmp_path), load_external_data=False)
    (images,), (answers,) = loaded.graph.input, loaded.graph.output
    assert (images.name, answers.name) == ("images", "probabilities")
    assert images.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [d.dim_param or d.dim_value for d in images.type.tensor_type.shape.dim] == ["N", 1, 28, 28]
    assert not any(t.external_data for t in loaded.graph.initializer)


@pytest.mark.parametrize("recipe", [False, True])
def test_safetensors_lists_its_layers_in_order(recipe, tmp_path):
    from safetensors import safe_open

    with safe_open(exported("safetensors", tmp_path, recipe=recipe), "pt") as file:
        layers = json.loads(file.metadata()["layers"])
    block = ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    assert [kind for kind, _ in layers] == ["BatchNorm2d", *4 * block, "Flatten", "Linear", "Softmax"]
    assert layers[1][1]["kernel_size"] == [3, 3]
    assert layers[1][1]["bias"] is not recipe  # constant means contain the bias


@pytest.mark.parametrize("factor", [1.01, float("nan")])
@pytest.mark.parametrize("to", ["torch", "safetensors"])
def test_a_file_that_answers_otherwise_is_not_left_behind(to, factor, tmp_path, monkeypatch):
    trained = adapted()
    made = module.classifier(trained)
    with torch.no_grad():
        made.network[0].weight.mul_(factor)
        made.network[-1].weight.mul_(factor)
    monkeypatch.setattr(module, "classifier", lambda _: made)
    path = tmp_path / f"net{FORMATS[to].suffix}"
    path.write_text("of old")
    with pytest.raises(RunError, match="probabilities differ by"):
        export(trained, CLASSES, pixels(6), path, to)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "of old"


class Fickle(nn.Module):
    """Decides by what it sees, which no trace can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 3).float()

    def forward(self, x):
        return self.layer(x.flatten(1)) if x.mean().item() > 0 else self.layer(-x.flatten(1))


@pytest.mark.parametrize("to", FORMATS)
def test_a_network_that_cannot_be_written_is_refused_in_one_line(to, tmp_path):
    fickle = AdaptedClassifier(Fickle(), model().image_input)
    with pytest.raises(UsageError, match=f"^to: {to}: the adapted network .*$") as refused:
        export(fickle, CLASSES, pixels(6), tmp_path / f"net{FORMATS[to].suffix}", to)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_how_to_get_it(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"needs {package}, .* in a clone .*pip install '\.\[onnx\]'"):
        export(adapted(), CLASSES, pixels(6), tmp_path / "net.onnx", "onnx")


def test_a_name_that_does_not_fit_its_format_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"out: .*net\.bin must end in \.pt2"):
        export(adapted(), CLASSES, pixels(6), tmp_path / "net.bin", "torch")
