"""Proto-PAMELA: its gradient, any number of classes and images, and the order of classes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pathaware import UsageError
from pathaware.core.head import one_hot
from pathaware.methods.proto_pamela import ProtoPamela


def head(ways: int = 4, features: int = 6, **settings) -> ProtoPamela:
    network = nn.Sequential(nn.Identity(), nn.Linear(features, ways))
    made = ProtoPamela(network, **settings).double()
    if made.adaptive:
        labels = torch.arange(5).repeat_interleave(20)
        made.observe(torch.randn(5, features)[labels] + torch.randn(100, features), labels)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def prepared(made: ProtoPamela, x):
    """u with the settings that a head without rules uses for all tasks."""
    ones = torch.ones(len(x), 1)
    return made.prepared(x, made.power * ones, made.log_shrinkage.exp() * ones)


def task(counts: list[int], features: int = 6):
    labels = torch.tensor([k for k, count in enumerate(counts) for _ in range(count)])
    return torch.randn(1, len(labels), features), labels[None]


def test_the_step_follows_the_gradient_of_the_balanced_cross_entropy():
    made = head()
    x, y = task([1, 3, 2, 5])
    z, hot = prepared(made, x), one_hot(y, 4, x)
    weights = hot / (4 * hot.sum(1, keepdim=True))
    rows = torch.randn(1, 4, 6, requires_grad=True)
    scale, known = torch.tensor([[3.0]]), torch.ones(1, 4, dtype=torch.bool)
    each = F.cross_entropy(made.logits(rows, scale, known, z)[0], y[0], reduction="none")
    loss = (each * weights.sum(2)[0]).sum()
    by_class = torch.stack([each[y[0] == k].mean() for k in range(4)])
    assert torch.allclose(loss, by_class.mean())
    (expected,) = torch.autograd.grad(loss, rows)
    assert torch.allclose(made.gradient(rows, scale, known, z, weights), expected, atol=1e-12)


def test_a_path_is_that_of_pamela():
    """Two steps by hand, the second of which ends in a skip to the first point."""
    made = head(steps=2, skip=1)
    x, y = task([2, 2, 1, 1])
    u, hot = prepared(made, x), one_hot(y, 4, x)
    shots = hot.sum(1)
    centre = 0.5 * torch.stack([u[0, y[0] == k].mean(0) for k in range(4)]).mean(0)
    z = F.normalize(u - centre, dim=-1)
    weights = hot / (4 * shots.unsqueeze(1))
    w0 = F.normalize(torch.stack([z[0, y[0] == k].mean(0) for k in range(4)]), dim=-1)[None]
    log_ways = torch.tensor(4.0).log()
    scale = (
        (made.log_scale + made.scale_rule[0] * log_ways + made.scale_rule[1] * shots.log().mean())
        .exp()
        .view(1, 1)
    )
    known = shots > 0
    q = [
        (made.log_q[j] + made.q_rule[0] * log_ways + made.q_rule[1] * shots.log()).exp().unsqueeze(2)
        for j in (0, 1)
    ]
    w1 = w0 - q[0] * made.gradient(w0, scale, known, z, weights)
    w2 = (1 - made.p[0]) * (w1 - q[1] * made.gradient(w1, scale, known, z, weights)) + made.p[0] * w0
    rows, temperature, _, found, *_ = made.fit(x, y)
    assert torch.allclose(found[0, 0], centre)
    assert torch.allclose(rows, w2, atol=1e-12)
    assert torch.allclose(temperature, scale)


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_order_of_classes_and_images_changes_nothing(adaptive):
    made, query = head(adaptive=adaptive, anchors=3 * adaptive), torch.randn(1, 7, 6)
    x, y = task([1, 4, 2, 3])
    expected = made.predict(made.fit(x, y), query)
    names, order = torch.randperm(4), torch.randperm(10)
    found = made.predict(made.fit(x[:, order], names[y][:, order]), query)
    assert torch.allclose(found[..., names], expected, atol=1e-12)


@pytest.mark.parametrize("adaptive", [False, True])
def test_padding_and_absent_classes_change_nothing(adaptive):
    made, query = head(adaptive=adaptive, anchors=3 * adaptive), torch.randn(1, 7, 6)
    x, y = task([2, 1, 3])
    few = head(ways=3, adaptive=adaptive, anchors=3 * adaptive)
    few.load_state_dict(made.state_dict())
    expected = few.predict(few.fit(x, y), query)
    padded = torch.cat([x, torch.randn(1, 5, 6)], 1), torch.cat([y, torch.full((1, 5), -1)], 1)
    found = made.predict(made.fit(*padded), query)
    assert torch.allclose(found[..., :3], expected, atol=1e-12)
    assert found[..., 3].max() < expected.min() - 100
    assert not any(value.isnan().any() for value in made.fit(*padded))


def test_statistics_of_training_features_whiten_them():
    torch.manual_seed(0)
    made = head(shrinkage=1e-6)
    labels = torch.arange(5).repeat_interleave(200)
    features = 5 * F.normalize(torch.randn(5, 6), dim=-1)[labels] + torch.randn(1000, 6) * torch.linspace(
        0.1, 1, 6
    )
    made.observe(features, labels)
    unit = F.normalize(features, dim=-1)
    centred = torch.cat([unit[labels == k] - unit[labels == k].mean(0) for k in range(5)])
    mapped = centred @ made.axes * (made.spread + made.log_shrinkage.exp()).rsqrt()
    covariance = mapped.mT @ mapped / len(mapped)
    assert covariance.diagonal().max() / covariance.diagonal().min() < 1.2
    assert (covariance - covariance.diagonal().diag()).abs().max() < 1e-6


def test_the_distance_tells_unlike_features_and_moves_the_rules():
    torch.manual_seed(0)
    made = ProtoPamela(nn.Sequential(nn.Linear(6, 3)), adaptive=True, power=0.8)
    labels = torch.arange(8).repeat_interleave(50)
    features = torch.randn(8, 6)[labels] + 0.3 * torch.randn(400, 6) + 2
    made.observe(features, labels)
    near = made.distances(features).mean()
    mean, inverse = made.typical
    assert torch.allclose(near, mean)
    assert torch.allclose(made.distances(features).std() * inverse, torch.tensor(1.0))
    with torch.no_grad():
        made.power_rule[3], made.shrinkage_rule[2], made.centring_rule[3] = -0.1, 0.2, 0.3
        made.scale_by_distance.fill_(0.4)
    y = torch.tensor([[0, 0, 1, 2]])
    for x in (features[None, [0, 1, 60, 110]], features[None, [0, 1, 60, 110]] - 4):
        by_class = made.distances(x)[0]
        distance = torch.stack([by_class[:2].mean(), by_class[2], by_class[3]]).mean()
        delta = ((distance - mean) * inverse).clamp(-3, 3)
        _, scale, _, centre, power, shrinkage = made.fit(x, y)
        u = made.prepared(x, power, shrinkage)
        middle = torch.stack([u[0, :2].mean(0), u[0, 2], u[0, 3]]).mean(0)
        assert torch.allclose(power, 0.8 * (-0.1 * delta).exp())
        assert torch.allclose(shrinkage, 3 * (0.2 * delta).exp())
        assert torch.allclose(scale, 10 * (0.4 * delta).exp())
        assert torch.allclose(centre[0, 0], 0.5 * (0.3 * delta).exp() * middle, atol=1e-6)
    assert delta == 3  # the features on the other side of zero are far away


def test_an_adaptive_head_begins_as_a_plain_one():
    plain, adaptive = (ProtoPamela(nn.Sequential(nn.Linear(6, 4)), adaptive=each) for each in (False, True))
    x, y = task([1, 3, 2, 2])
    query = torch.randn(1, 7, 6)
    expected = plain.predict(plain.fit(x, y), query)
    assert torch.allclose(adaptive.predict(adaptive.fit(x, y), query), expected, atol=1e-6)


def test_training_classes_that_are_alike_complete_a_class_mean():
    torch.manual_seed(0)
    made = ProtoPamela(nn.Sequential(nn.Linear(6, 3)), steps=0, centring=0.0, adaptive=True, anchors=4)
    labels = torch.arange(4).repeat_interleave(30)
    training = 3 * torch.eye(4, 6)[labels] + 0.2 * torch.randn(120, 6)
    made.observe(training, labels)
    with torch.no_grad():
        made.log_sharpness.fill_(5.0)
    x, y = training[None, [0, 30, 60]] + 0.3 * torch.randn(1, 3, 6), torch.arange(3)[None]
    rows, *_, power, shrinkage = made.fit(x, y)
    own = made.prepared(x, power, shrinkage)
    means = made.prepared(F.normalize(training, dim=-1).unflatten(0, (4, 30)).mean(1)[None], power, shrinkage)
    assert torch.allclose(made.anchor_means, F.normalize(training, dim=-1).unflatten(0, (4, 30)).mean(1))
    assert torch.allclose(rows, F.normalize(own + 0.2 * means[:, :3], dim=-1), atol=1e-5)
    with pytest.raises(UsageError, match="anchors"):
        made.observe(training[:90], labels[:90])


def test_a_power_flattens_features():
    made = head(power=0.5)
    x = torch.tensor([[[4.0, -9.0, 0.0, 0.0, 0.0, 1.0]]])
    u = prepared(made, x)[0, 0]
    assert torch.allclose(u, F.normalize(torch.tensor([2.0, -3.0, 0, 0, 0, 1]), dim=0), atol=2e-3)
