"""Backbones: weights from files, frozen statistics, and which parts adapt."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from pathaware import MetaLearner, Pamela, UsageError
from pathaware.core.batch_norm import FrozenBatchNorm, TaskStatistics, freeze_running_statistics
from pathaware.core.execution import select_execution
from pathaware.core.few_shot import part_of
from pathaware.core.parameters import Layout
from pathaware.models import conv4, resnet12
from pathaware.models.backbones import (
    FrozenBackbone,
    PreparedInput,
    last_block,
    load_weights,
    read_weights,
    restrict,
    timm_input,
    timm_model,
)
from tests.models.residual18 import ResNet18, pretrained


@pytest.fixture
def images():
    return torch.randn(5, 1, 28, 28, dtype=torch.float32)


def fresh(ways: int = 3) -> nn.Module:
    return freeze_running_statistics(ResNet18(ways, width=8, channels=1).float(), all_norms=True)


def body(network: nn.Module) -> nn.Module:
    network.fc = nn.Identity()
    return network.eval()


def test_frozen_statistics_give_what_evaluation_mode_gives(images):
    expected = pretrained()(images)
    frozen = freeze_running_statistics(pretrained()).train()
    with TaskStatistics():  # affects batch norm of the batch only
        assert torch.allclose(frozen(images), expected, atol=1e-5)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in frozen.modules())


def test_a_norm_without_weights_is_frozen_too():
    norm = nn.BatchNorm1d(3, affine=False)
    norm(torch.randn(9, 3))
    x = torch.randn(4, 3)
    assert torch.allclose(FrozenBatchNorm(norm)(x), norm.eval()(x))


@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "model.", "module.encoder."])
@pytest.mark.parametrize("kind", ["safetensors", "pt", "nested"])
def test_weights_are_found_whatever_their_prefix_and_file(prefix, kind, tmp_path, images):
    source = pretrained(10)
    state = {f"{prefix}{name}": value for name, value in source.state_dict().items()}
    if prefix == "backbone.":
        state |= {"projection.weight": torch.zeros(2, 2)}
    path = tmp_path / ("weights.safetensors" if kind == "safetensors" else "weights.pt")
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save({"state_dict": state, "epoch": 3} if kind == "nested" else state, path)
    network = fresh()
    load_weights(network, read_weights(path), str(path))
    assert torch.allclose(body(network)(images), body(source)(images), atol=1e-5)


def test_weights_that_do_not_fit_are_listed():
    state = pretrained(10).state_dict()
    state["layer9.weight"] = state.pop("layer1.0.conv1.weight")
    with pytest.raises(
        UsageError, match=r"w.pt lacks layer1.0.conv1.weight; it has layer9.weight, which"
    ) as e:
        load_weights(fresh(), state, "w.pt")
    assert e.value.field == "weights"
    wide = ResNet18(10, width=16, channels=1).state_dict()
    with pytest.raises(UsageError, match=r"another shape for conv1.weight, .* and \d+ more"):
        load_weights(fresh(), wide, "w.pt")


def test_a_network_that_is_there_twice_is_refused():
    state = pretrained(10).state_dict()
    twice = {f"{prefix}.{name}": value for prefix in ("student", "teacher") for name, value in state.items()}
    with pytest.raises(UsageError, match=r"several times: student\., teacher\."):
        load_weights(fresh(), twice, "w.pt")


class Payload:
    def __reduce__(self):
        return print, ("code was executed",)


@pytest.mark.parametrize("content", [Payload(), b"", [1, 2], {"a": Payload()}])
def test_files_that_are_no_weights_are_refused_and_execute_nothing(content, tmp_path, capsys):
    path = tmp_path / "weights.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(UsageError, match=r"weights\.pt"):
        read_weights(path)
    broken = tmp_path / "weights.safetensors"
    broken.write_bytes(b"x" * 20)
    for missing in (broken, tmp_path / "none.pt", tmp_path):
        with pytest.raises(UsageError, match=r"cannot be read|neither"):
            read_weights(missing)
    assert "executed" not in capsys.readouterr().out


def adapted(network: nn.Module) -> set[str]:
    return {entry.name for entry in Layout.of(network).entries}


def test_each_choice_adapts_its_parts():
    head = {"fc.weight", "fc.bias"}
    assert adapted(restrict(fresh(), "head")) == {"head.weight", "head.bias"}
    block = adapted(restrict(fresh(), "last-block"))
    assert block > head
    assert {name.rsplit(".", 2)[0] for name in block - head} == {"layer4.1"}
    scales = adapted(restrict(fresh(), "adapters"))
    assert scales > head
    assert {name.split(".")[-2] for name in scales - head} == {"bn1", "bn2", "1"}
    assert adapted(restrict(fresh(), "all")) == {name for name, _ in fresh().named_parameters()}


def test_the_last_block_of_other_networks():
    assert last_block(resnet12(3, width=2), "6") == "3"
    assert last_block(conv4(3, width=2), "head") == "conv4"
    with pytest.raises(UsageError, match="before the last one"):
        last_block(nn.Sequential(nn.Flatten(), nn.Linear(3, 3)), "1")


def test_what_cannot_be_restricted_is_refused():
    with pytest.raises(UsageError, match="norm1 keeps none"):
        restrict(conv4(3, width=2), "head")
    with pytest.raises(UsageError, match="normalisation layers"):
        restrict(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), "adapters")
    with pytest.raises(UsageError, match="must be one of all, head, last-block, adapters"):
        restrict(conv4(3), "tail")


def test_a_frozen_backbone_takes_images_or_their_features(images):
    network = restrict(fresh(), "head").float().train()
    backbone = part_of(network, FrozenBackbone)
    features = backbone(images)
    assert features.shape == (5, backbone.features)
    assert torch.equal(network(images), network(features))
    assert not any(p.requires_grad for p in backbone.parameters())
    assert not any(m.training for m in backbone.body.modules())


def test_adapters_follow_a_path_and_the_rest_stays(images):
    network = restrict(fresh(), "adapters")
    learner = MetaLearner(network, Pamela(network, 2, rate=0.1, q_start=0.5), cross_entropy).float()
    y = torch.tensor([0, 1, 2, 0, 1])
    changed = dict(learner.adapt(images, y).named_parameters())
    before = dict(network.named_parameters())
    moved = {name for name in before if not torch.equal(before[name], changed[name])}
    assert moved
    assert moved <= adapted(network)
    assert any("bn" in name for name in moved)


def test_prepared_input_scales_and_normalises():
    given, wanted = ((0.2,), (0.5,)), ((0.4,), (0.25,))
    pixels = torch.rand(2, 1, 8, 8)
    out = PreparedInput(16, given, wanted)((pixels - 0.2) / 0.5)
    assert out.shape == (2, 1, 16, 16)
    same = PreparedInput(8, given, wanted)((pixels - 0.2) / 0.5)
    assert torch.allclose(same, (pixels - 0.4) / 0.25, atol=1e-6)


def test_networks_of_timm_need_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[timm\]'"):
        timm_model("timm:resnet18", 5, 3, pretrained=False)


def test_timm_is_asked_for_the_network_and_for_its_input(monkeypatch):
    """timm is not installed with the tests: this checks our calls against its documented interface."""
    calls = []

    def create_model(name, *, pretrained, num_classes, in_chans):
        calls.append((name, pretrained, num_classes, in_chans))
        if name != "resnet18":
            raise RuntimeError(f"Unknown model ({name})")
        return ResNet18(num_classes, width=8, channels=in_chans)

    timm, data = ModuleType("timm"), ModuleType("timm.data")
    timm.create_model = create_model
    config = {"input_size": (3, 224, 224), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    data.resolve_model_data_config = lambda model: SimpleNamespace(**config).__dict__
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    model = timm_model("timm:resnet18", 5, 3, pretrained=True)
    assert calls == [("resnet18", True, 5, 3)]
    assert timm_input(model) == (224, ((0.5,) * 3, (0.5,) * 3))
    with pytest.raises(UsageError, match="timm cannot build nothing"):
        timm_model("timm:nothing", 5, 3, pretrained=True)


def test_constant_statistics_give_the_same_numbers_in_every_execution():
    model = freeze_running_statistics(conv4(ways=3, size=16, channels=1, width=4), all_norms=True).double()
    for name, buffer in model.named_buffers():
        buffer.copy_(torch.rand(buffer.shape) + 0.5 * ("var" in name))
    layout = Layout.of(model)
    start = layout.flatten(model).detach()
    point = start + 0.1 * torch.randn(2, len(start), dtype=torch.float64)
    x = torch.rand(2, 5, 1, 16, 16, dtype=torch.float64)
    found = [
        select_execution(name, model, layout, cross_entropy).predict(point, x)
        for name in ("loop", "vmap", "batched")
    ]
    assert torch.allclose(found[1], found[0], atol=1e-12)
    assert torch.allclose(found[2], found[0], atol=1e-12)
