"""The paper's waves."""

from __future__ import annotations

import math

import pytest
import torch

from pathaware import UsageError
from pathaware.core.seeding import generator
from pathaware.data.sine import SineWaves


def test_waves_follow_the_papers_distribution():
    """Fit each wave exactly from its points and look at the ranges of what comes out."""
    episodes = SineWaves(5, 10, dtype=torch.float64).sample(4000, generator(0, "waves"))
    x = torch.cat([episodes.support_x, episodes.query_x], 1)[..., 0]
    y = torch.cat([episodes.support_y, episodes.query_y], 1)[..., 0]
    assert x.min() >= -5
    assert x.max() <= 5
    assert abs(x.mean()) < 0.05
    assert abs(x.var() - 100 / 12) < 0.1
    # E[y²] = E[a²]/2 up to the small correlation of frequency and domain
    assert abs(y.square().mean() - (5**3 - 0.1**3) / (3 * 4.9) / 2) < 0.3
    assert y.abs().max() <= 5


def test_frequency_and_phase_stay_in_their_ranges():
    """Zeros of y: f·x + φ = kπ. With a dense grid the zeros tell frequency and phase."""
    episodes = SineWaves(1, 4001, grid=True, dtype=torch.float64).sample(200, generator(1, "waves"))
    x, y = episodes.query_x[0, :, 0], episodes.query_y[..., 0]
    for wave in y:
        crossings = x[1:][wave[1:].sign() != wave[:-1].sign()]
        frequency = math.pi / (crossings[1:] - crossings[:-1]).mean()
        assert 0.79 < frequency < 1.21
        assert wave[2000].sign() >= 0 or abs(wave[2000]) < 1e-9  # sin(φ) ≥ 0 for φ in 0…π


def test_support_and_query_points_are_on_the_same_wave():
    """Three points fix a wave of known frequency; all must agree with the grid between them."""
    episodes = SineWaves(50, 20001, grid=True, dtype=torch.float64).sample(3, generator(2, "waves"))
    for sx, sy, qx, qy in zip(*episodes.tensors(), strict=True):
        nearest = (sx - qx.T).abs().argmin(1)
        assert (sy - qy[nearest]).abs().max() < 5 * 1.2 * (10 / 20000)


def test_every_task_is_drawn_afresh_and_the_same_seed_repeats_it():
    source = SineWaves(5)
    first, again, other = (source.sample(10, generator(s, "train", 0)) for s in (0, 0, 1))
    assert torch.equal(first.support_y, again.support_y)
    assert not torch.equal(first.support_y, other.support_y)
    assert len(first.support_x.unique()) == 50


@pytest.mark.parametrize("shots", [0, -1])
def test_no_shots_are_refused(shots):
    with pytest.raises(UsageError, match=f"shots: {shots} is not allowed; must be at least 1"):
        SineWaves(shots)
