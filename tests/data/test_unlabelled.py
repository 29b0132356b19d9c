"""Tasks from images without labels."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.core.seeding import generator
from pathaware.data.episodes import Augmentation, ImageViews, random_affine, transform
from pathaware.data.importing import in_memory
from pathaware.data.pixels import ImageFormat
from pathaware.data.store import ImageStore
from pathaware.data.unlabelled import CHARACTERS, PHOTOGRAPHS, UnlabelledEpisodes, strong
from tests.data.test_episodes import class_of, make_store

WAYS, SHOTS, QUERIES = 5, 2, 3


def ink_store(ink: bool) -> ImageStore:
    """Bright characters on black, or photographs."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 3, 12, 12), dtype=np.uint8)
    form = ImageFormat(12, 3, mirror=not ink, ink=ink)
    return in_memory("made", [("a", "train", pixels[:10]), ("b", "train", pixels[10:])], form, "a test")


def source(store=None, shots=SHOTS, **options) -> UnlabelledEpisodes:
    return UnlabelledEpisodes(store or make_store(), "train", WAYS, shots, QUERIES, **options)


def test_a_class_is_one_image_and_labels_number_the_images():
    tasks = source()
    plan = tasks.draw(40, generator(0, "draw"))
    first = SHOTS * WAYS
    for images, labels in zip(plan.images, plan.labels, strict=True):
        assert len(set(images.tolist())) == WAYS
        pairs = set(zip(images.tolist(), labels.tolist(), strict=True))
        assert len(pairs) == WAYS
        assert labels[:first].bincount().tolist() == [SHOTS] * WAYS
        assert labels[first:].bincount().tolist() == [QUERIES] * WAYS
    assert not torch.equal(plan.labels[0], plan.labels[1])  # in random order
    batch = tasks.gather(plan)
    assert batch.support_x.shape == (40, first, 3, 12, 12)
    assert torch.equal(batch.query_y, plan.labels[:, first:])


def test_images_are_drawn_from_the_whole_split_whatever_their_class():
    """Also of the same class, and each image equally often."""
    store = make_store()
    tasks = 6000
    plan = source(store, shots=1).draw(tasks, generator(1, "draw"))
    support = plan.images[:, :WAYS]
    train = store.split("train")
    first, count = int(train.starts[0]), int(train.counts.sum())
    times = torch.bincount(support.flatten() - first, minlength=count).double()
    assert len(times) == count
    expected = tasks * WAYS / count
    assert ((times - expected) ** 2 / expected).sum() < 1.5 * count  # chi-square of 88 degrees: p < 0.001
    classes = class_of(store, support)
    assert any(len(set(row)) < WAYS for row in classes.tolist())


def test_labels_of_the_store_are_not_used():
    """With the same images in other classes, the same tasks."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 3, 12, 12), dtype=np.uint8)
    kinds = ImageFormat(12, 3)

    def store(sizes):
        parts = np.split(pixels, np.cumsum(sizes)[:-1])
        return in_memory("made", [(f"c{i}", "train", p) for i, p in enumerate(parts)], kinds, "a test")

    one, other = (source(store(sizes)).sample(6, generator(0, "draw")) for sizes in ((4,) * 6, (11, 1, 12)))
    for a, b in zip(one.tensors(), other.tensors(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("ink", [False, True])
def test_the_first_support_image_is_unchanged_and_all_others_are_augmented(ink):
    store = ink_store(ink)
    tasks = source(store, dtype=torch.float64)
    plan = tasks.draw(5, generator(0, "draw"))
    batch = tasks.gather(plan)
    plain = ImageViews(store, Augmentation(), dtype=torch.float64)
    images = torch.cat([batch.support_x, batch.query_x], 1)
    shown = plain.show(plain.draw(plan.images, generator(0, "unused"))).view_as(images)
    same = (images - shown).abs().flatten(2).amax(2) < 1e-9
    support = slice(SHOTS * WAYS)
    for task in range(5):
        unchanged = plan.labels[task, support][same[task, support]]
        assert unchanged.sort().values.tolist() == list(range(WAYS))
        assert not same[task, SHOTS * WAYS :].any()


def test_the_same_seed_gives_the_same_tasks_wherever_images_are_kept():
    here, there = (source(placement=p).sample(3, generator(0, "draw")) for p in ("device", "host"))
    other = source().sample(3, generator(1, "draw"))
    for a, b in zip(here.tensors(), there.tensors(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(here.query_x, other.query_x)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_that_gather_their_share_together_have_the_tasks_of_one(workers):
    tasks = source()
    plan = tasks.draw(7, generator(0, "draw"))
    whole = tasks.gather(plan)
    shares = [tasks.gather(plan.share(w, workers)) for w in range(workers)]
    for position, tensor in enumerate(whole.tensors()):
        assert torch.equal(tensor, torch.cat([s.tensors()[position] for s in shares]))


def test_strengths_that_are_given_replace_the_defaults():
    assert strong(Augmentation(), CHARACTERS) == CHARACTERS
    assert strong(Augmentation(affine=0.1), CHARACTERS) == dataclasses.replace(CHARACTERS, affine=0.1)
    assert strong(Augmentation(crop=True, jitter=0.2), PHOTOGRAPHS).jitter == 0.2


def test_characters_and_photographs_have_different_defaults():
    assert source(ink_store(ink=False)).views.augmentation == PHOTOGRAPHS
    assert source(ink_store(ink=True)).views.augmentation == CHARACTERS


def test_fewer_images_than_classes_are_refused():
    with pytest.raises(UsageError, match="ways 90: the train split of made has only 89 images"):
        UnlabelledEpisodes(make_store(), "train", 90, 1, 1)


def slowly(image: torch.Tensor, affine: torch.Tensor) -> torch.Tensor:
    """Map one image of one channel pixel by pixel, bilinear, zero outside."""
    n = image.shape[-1]
    result = torch.zeros_like(image)

    def at(row, column):
        return image[row, column].item() if 0 <= row < n and 0 <= column < n else 0.0

    for i in range(n):
        for j in range(n):
            x, y = (2 * j + 1) / n - 1, (2 * i + 1) / n - 1  # centres of pixels, from −1 to 1
            u, v = (affine @ torch.tensor([x, y, 1.0])).tolist()
            column, row = ((u + 1) * n - 1) / 2, ((v + 1) * n - 1) / 2
            left, top = int(np.floor(column)), int(np.floor(row))
            a, b = column - left, row - top
            result[i, j] = (1 - b) * ((1 - a) * at(top, left) + a * at(top, left + 1)) + b * (
                (1 - a) * at(top + 1, left) + a * at(top + 1, left + 1)
            )
    return result


def test_an_affine_map_agrees_with_a_pixel_by_pixel_reference():
    images = torch.rand(4, 1, 7, 7)
    maps = random_affine(0.3, torch.Size([4]), generator(0, "maps")).double()
    found = transform(images, maps)
    for image, affine, result in zip(images, maps, found, strict=True):
        assert torch.allclose(result[0], slowly(image[0], affine), atol=1e-9)
    identity = torch.eye(2, 3).expand(4, 2, 3)
    assert torch.allclose(transform(images, identity), images, atol=1e-12)


def test_affine_maps_stay_in_their_range():
    """The determinant of rotation and scale, the shift, and the angle of the first axis."""
    strength = 0.2
    maps = random_affine(strength, torch.Size([50, 40]), generator(0, "maps")).double().flatten(0, 1)
    linear, shift = maps[:, :, :2], maps[:, :, 2]
    angles = torch.atan2(linear[:, 1, 0], linear[:, 0, 0])
    for values, most in ((shift.flatten(), 2 * strength), (angles, strength * torch.pi / 2)):
        assert 0.95 * most < values.abs().max() <= most * (1 + 1e-6)
        assert abs(values.mean()) < 0.05 * most
    areas = torch.linalg.det(linear)
    assert 1 / 1.2**2 - 1e-6 <= areas.min() < areas.max() <= 1 / 0.8**2 + 1e-6


def test_grey_images_and_dropped_pixels_are_as_many_as_asked_for():
    views = ImageViews(make_store(), Augmentation(grey=0.5, drop=0.3))
    plan = views.draw(torch.arange(12).repeat(40)[None], generator(0, "draw"))
    grey = plan.colours[..., 2] == 0
    assert abs(grey.double().mean() - 0.5) < 0.07
    assert (plan.colours[..., :2] == 1).all()
    assert abs(plan.dropped.double().mean() - 0.3) < 0.01
    black = views._mean.neg().mul(views._scale)
    shown = views.show(plan).double()
    dropped = plan.dropped[0][:, None].expand_as(shown)
    assert torch.allclose(shown[dropped], black.expand_as(shown)[dropped].double())


@pytest.mark.parametrize("name", ["jitter", "erase", "affine", "grey", "drop"])
def test_strengths_are_fractions(name):
    for value in (-0.1, 1.5):
        with pytest.raises(UsageError, match=name):
            Augmentation(**{name: value})
