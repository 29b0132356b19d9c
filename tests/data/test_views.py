"""How training images are varied beyond crops and mirrors."""

from __future__ import annotations

import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.core.seeding import generator
from pathaware.data.episodes import Augmentation, ImageViews, recolour, square
from tests.data.test_episodes import make_store


def test_factors_of_one_leave_colours_alone_and_others_do_what_they_say():
    pixels = torch.rand(3, 3, 6, 6) * 200
    assert torch.allclose(recolour(pixels, torch.ones(3, 3)), pixels)
    darker = recolour(pixels, torch.tensor([[0.5, 1.0, 1.0]]).expand(3, 3))
    assert torch.allclose(darker, pixels / 2)
    grey = recolour(pixels, torch.tensor([[1.0, 1.0, 0.0]]).expand(3, 3))
    assert torch.allclose(grey, pixels.mean(1, keepdim=True).expand_as(pixels))
    flat = recolour(pixels, torch.tensor([[1.0, 0.0, 1.0]]).expand(3, 3))
    assert torch.allclose(flat, pixels.mean((1, 2, 3), keepdim=True).expand_as(pixels))


def test_a_square_covers_what_lies_in_it_and_a_corner_beyond_the_image_covers_nothing():
    covered = square(torch.tensor([[1, 2], [-1, -1], [6, 6]]), 3, 6)
    assert covered.shape == (3, 1, 6, 6)
    assert covered[0, 0].nonzero().tolist() == [[r, c] for r in (1, 2, 3) for c in (2, 3, 4)]
    assert covered[1, 0].nonzero().tolist() == [[r, c] for r in (0, 1) for c in (0, 1)]
    assert not covered[2].any()


def test_jitter_stays_in_its_range_and_every_second_image_is_erased():
    views = ImageViews(make_store(), Augmentation(jitter=0.4, erase=0.5))
    plan = views.draw(torch.arange(12).repeat(40)[None], generator(0, "draw"))
    assert plan.colours is not None
    assert plan.holes is not None
    assert 0.6 <= plan.colours.min() < 0.62
    assert 1.38 < plan.colours.max() <= 1.4
    erased = (plan.holes < 12).all(-1).float().mean()
    assert abs(erased - 0.5) < 0.1
    blank = (views.show(plan) == 0).all(1).flatten(1).sum(1)  # the mean colour is zero once normalised
    assert int(blank.max()) == 36
    assert (blank > 0).float().mean() <= erased


def test_only_what_is_asked_for_is_drawn():
    plan = ImageViews(make_store(), Augmentation()).draw(torch.arange(6)[None], generator(0, "draw"))
    assert plan.offsets is plan.flips is plan.colours is plan.holes is None


def test_more_than_all_of_an_image_cannot_be_varied():
    with pytest.raises(UsageError, match=r"erase: 1\.5 is not allowed"):
        Augmentation(erase=1.5)
