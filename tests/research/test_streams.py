from __future__ import annotations

import pytest
import torch

from pathaware import UsageError
from pathaware_research.online.streams import DataSet, glyph_stream, open_stream, sine_stream


def same(a: DataSet, b: DataSet) -> bool:
    pairs = zip((*a.items, a.test), (*b.items, b.test), strict=True)
    return all(torch.equal(s, t) for one, other in pairs for s, t in zip(one, other, strict=True))


@pytest.mark.parametrize("make", [sine_stream, glyph_stream])
def test_a_stream_is_a_pure_function_of_its_seed(make):
    stream = make()
    third = list(stream.data_sets(7, 3))[2]
    assert same(third, stream.data_set(7, 2))
    assert not same(third, stream.data_set(8, 2))
    assert not same(third, stream.data_set(7, 1))
    assert not same(third, stream.data_set(7, 2, "validation"))


@pytest.mark.parametrize("make", [sine_stream, glyph_stream])
def test_a_data_set_comes_in_items_of_one_size(make):
    data_set = make(3, 4).data_set(0, 0)
    assert [(len(x), len(y)) for x, y in data_set.items] == [(4, 4)] * 3


def test_all_points_of_a_data_set_lie_on_one_wave():
    """a·sin(fx + φ) = c·sin(fx) + d·cos(fx) for some f in the range: two unknowns, and no residual."""
    data_set = sine_stream().data_set(3, 5)
    x, y = (torch.cat(parts)[:, 0] for parts in zip(*data_set.items, data_set.test, strict=True))
    assert -5 <= x.min() < -4 < 4 < x.max() <= 5
    assert 0.1 <= y.abs().max() <= 5
    residues = []
    for f in torch.linspace(0.8, 1.2, 401):
        basis = torch.stack([torch.sin(f * x), torch.cos(f * x)], dim=1)
        residues.append((basis @ torch.linalg.lstsq(basis, y[:, None]).solution - y[:, None]).square().mean())
    assert torch.stack(residues).min() < 1e-4


def test_an_item_of_glyphs_shows_each_class_once_and_none_comes_twice():
    data_set = glyph_stream().data_set(0, 0)
    assert all(sorted(y.tolist()) == [0, 1, 2, 3, 4] for _, y in data_set.items)
    images = torch.cat([*(x for x, _ in data_set.items), data_set.test[0]]).flatten(1)
    assert len(images.unique(dim=0)) == len(images) == 5 * 8 + 5 * 10


def test_the_labels_of_glyphs_are_dealt_out_anew():
    """A character that several data sets share does not always have the same label."""
    stream = glyph_stream()
    labels: dict[int, set[int]] = {}
    for position in range(60):
        generator = torch.Generator().manual_seed(position)
        plan = stream.source.draw(1, generator)
        classes = torch.searchsorted(stream.source._starts, plan.images[0, :5], right=True)
        for label, number in enumerate(classes.tolist()):
            labels.setdefault(number, set()).add(label)
    assert max(map(len, labels.values())) >= 3


def test_networks_start_alike_for_one_seed_and_leave_the_generator_alone():
    stream = sine_stream()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, again, other, second = (stream.network(*a)[0].weight for a in ((0,), (0,), (1,), (0, 1)))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, second)


def test_an_error_is_small_where_predictions_are_right():
    glyphs, labels = glyph_stream(), torch.tensor([0, 1, 2, 3])
    assert glyphs.error(torch.eye(5)[labels], labels) == 0
    assert glyphs.error(torch.eye(5)[[0, 1, 2, 2]], labels) == 0.25
    assert sine_stream().error(torch.ones(3, 1), torch.full((3, 1), 3.0)) == 4


def test_a_stream_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="stream: 'cosine' must be one of sine, glyphs"):
        open_stream("cosine")
    with pytest.raises(UsageError, match="items: 0 is not allowed"):
        open_stream("sine", 0)
