from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.seeding import generator
from pathaware.data.episodes import Augmentation, EpisodePlan, ImageEpisodes, crop_and_flip, crop_padding
from pathaware.data.importing import in_memory
from pathaware.data.pixels import ImageFormat
from pathaware.data.store import ImageStore

WAYS, SHOTS, QUERIES = 5, 2, 3


def make_store(
    counts: tuple[int, ...] = (9, 6, 30, 7, 12, 6, 8, 11),
    size: int = 12,
    channels: int = 3,
    mirror: bool = True,
) -> ImageStore:
    """Validation classes first, so that indices of training images do not begin at 0."""
    random = np.random.default_rng(0)

    def images(count: int) -> np.ndarray:
        return random.integers(0, 256, (count, channels, size, size), dtype=np.uint8)

    classes = [(f"held out {i}", "val", images(4)) for i in range(3)]
    classes += [(f"class {i}", "train", images(count)) for i, count in enumerate(counts)]
    return in_memory("made", classes, ImageFormat(size, channels, mirror=mirror), "a test")  # type: ignore[arg-type]


def episodes(store: ImageStore, augment: bool = False, **options) -> ImageEpisodes:
    return ImageEpisodes(store, "train", WAYS, SHOTS, QUERIES, Augmentation(crop=augment), **options)


def class_of(store: ImageStore, images: Tensor) -> Tensor:
    """The class of each image index, found the slow way."""
    owner = [c for c, span in enumerate(store.manifest.classes) for _ in range(span.count)]
    return torch.tensor(owner)[images]


def test_every_label_stands_for_one_class_and_no_position_for_a_label() -> None:
    store = make_store()
    plan = episodes(store).draw(200, generator(0, "draw"))
    classes = class_of(store, plan.images)
    assert plan.labels is not None
    for task, labels in zip(classes, plan.labels, strict=True):
        pairs = set(zip(labels.tolist(), task.tolist(), strict=True))
        assert sorted(label for label, _ in pairs) == list(range(WAYS))
        assert len({c for _, c in pairs}) == WAYS
    for part, count in ((plan.labels[:, : SHOTS * WAYS], SHOTS), (plan.labels[:, SHOTS * WAYS :], QUERIES)):
        assert (part.sort(1).values == torch.arange(WAYS).repeat_interleave(count)).all()
        at_each_position = torch.stack([(part == label).sum(0) for label in range(WAYS)])
        assert (at_each_position > 20).all()  # 40 expected; in order, it would be 200 or 0
    assert {store.manifest.classes[c].split for c in classes.unique().tolist()} == {"train"}
    batch = episodes(store).sample(200, generator(0, "draw"))
    assert batch.support_x.shape == (200, SHOTS * WAYS, 3, 12, 12)
    assert batch.query_x.shape == (200, QUERIES * WAYS, 3, 12, 12)
    assert torch.equal(torch.cat([batch.support_y, batch.query_y], 1), plan.labels)


def test_without_shuffling_examples_are_laid_out_shot_by_shot_class_by_class() -> None:
    store = make_store()
    plan = episodes(store, shuffle=False).draw(20, generator(0, "draw"))
    classes = class_of(store, plan.images).view(20, SHOTS + QUERIES, WAYS)
    assert (classes == classes[:, :1]).all()
    assert plan.labels is not None
    assert plan.labels[3].tolist() == list(range(WAYS)) * (SHOTS + QUERIES)


def test_shuffling_changes_neither_the_images_of_a_set_nor_their_augmentation_nor_later_tasks() -> None:
    store = make_store()
    support = SHOTS * WAYS
    random = [generator(0, "draw"), generator(0, "draw")]
    for _ in range(2):  # the second time the generators have been used before
        plans = [
            episodes(store, augment=True, shuffle=s).draw(6, g)
            for s, g in zip((False, True), random, strict=True)
        ]
        for part in (slice(0, support), slice(support, None)):
            examples = [
                [
                    sorted(
                        zip(
                            plan.images[task, part].tolist(),
                            plan.labels[task, part].tolist(),  # type: ignore[index]
                            plan.offsets[task, part].tolist(),  # type: ignore[index]
                            plan.flips[task, part].tolist(),  # type: ignore[index]
                            strict=True,
                        )
                    )
                    for task in range(6)
                ]
                for plan in plans
            ]
            assert examples[0] == examples[1]
        assert not torch.equal(plans[0].images, plans[1].images)


def test_no_image_is_in_an_episode_twice_even_when_a_class_is_used_up() -> None:
    store = make_store(counts=(SHOTS + QUERIES,) * 6)
    plan = episodes(store).draw(200, generator(1, "draw"))
    assert all(len(set(task.tolist())) == WAYS * (SHOTS + QUERIES) for task in plan.images)


def test_classes_and_images_are_drawn_uniformly() -> None:
    # Chi-square with a fixed seed: fails for any bias a user could notice, and never by chance.
    store = make_store()
    tasks = 4000
    plan = episodes(store).draw(tasks, generator(2, "draw"))
    train = store.split("train")
    chosen = class_of(store, episodes(store, shuffle=False).draw(tasks, generator(2, "draw")).images) - 3
    chosen = chosen.view(tasks, -1, WAYS)[:, 0]
    times = torch.bincount(chosen.flatten(), minlength=len(train)).double()
    expected = tasks * WAYS / len(train)
    assert ((times - expected) ** 2 / expected).sum() < 26  # 7 degrees of freedom, p = 0.0005
    for start, count in zip(train.starts.tolist(), train.counts.tolist(), strict=True):
        inside = plan.images[(plan.images >= start) & (plan.images < start + count)] - start
        times = torch.bincount(inside, minlength=count).double()
        # Without replacement the counts vary less than the law supposes, which makes the test stricter.
        assert ((times - times.mean()) ** 2 / times.mean()).sum() < 3 * count + 10


def test_every_position_of_an_episode_is_equally_likely_for_an_image() -> None:
    store = make_store(counts=(6,) * 6)
    plan = episodes(store).draw(3000, generator(3, "draw"))
    first = int(store.split("train").starts[0])
    support = (plan.images[:, : SHOTS * WAYS] == first).sum()
    query = (plan.images[:, SHOTS * WAYS :] == first).sum()
    assert abs(support / (support + query) - SHOTS / (SHOTS + QUERIES)) < 0.03


def test_the_same_seed_gives_the_same_episodes_and_another_does_not() -> None:
    source = episodes(make_store(), augment=True)
    first, again, other = (source.sample(4, generator(seed, "draw")) for seed in (0, 0, 1))
    for a, b in zip(first.tensors(), again.tensors(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.support_x, other.support_x)


@pytest.mark.parametrize("tasks", [8, 7])
def test_workers_that_gather_their_share_together_have_the_tasks_of_one(tasks: int) -> None:
    source = episodes(make_store(), augment=True)
    whole = source.sample(tasks, generator(0, "draw"))
    shares = [source.gather(source.draw(tasks, generator(0, "draw")).share(w, 3)) for w in range(3)]
    for position, tensor in enumerate(whole.tensors()):
        assert torch.equal(tensor, torch.cat([s.tensors()[position] for s in shares]))
    with pytest.raises(UsageError, match="worker 3: must be at least 0 and below"):
        source.draw(tasks, generator(0, "draw")).share(3, 3)


def test_without_augmentation_pixels_are_those_of_the_store_normalised() -> None:
    store = make_store()
    source = episodes(store, dtype=torch.float64)
    plan = source.draw(3, generator(0, "draw"))
    batch = source.gather(plan)
    mean = torch.tensor(store.manifest.mean, dtype=torch.float64).view(-1, 1, 1)
    std = torch.tensor(store.manifest.std, dtype=torch.float64).view(-1, 1, 1)
    expected = (store.images[plan.images].double() / 255 - mean) / std
    torch.testing.assert_close(torch.cat([batch.support_x, batch.query_x], 1), expected)


def slowly(image: Tensor, row: int, column: int, flip: bool, padding: int) -> Tensor:
    """Crop and flip one image, pixel by pixel."""
    channels, height, width = image.shape
    result = torch.zeros_like(image)
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                y_from, x_from = y + row - padding, (width - 1 - x if flip else x) + column - padding
                if 0 <= y_from < height and 0 <= x_from < width:
                    result[c, y, x] = image[c, y_from, x_from]
    return result


def test_crop_and_flip_agree_with_a_pixel_by_pixel_reference() -> None:
    random = generator(0, "reference")
    images = torch.randint(1, 256, (6, 2, 7, 9), generator=random, dtype=torch.uint8)
    index = torch.tensor([3, 0, 5, 3, 1, 2, 4])
    offsets = torch.tensor([[0, 0], [6, 6], [0, 6], [3, 3], [1, 5], [4, 2], [6, 0]])
    flips = torch.tensor([False, True, True, True, False, True, False])
    found = crop_and_flip(images, index, offsets, flips, padding=3)
    rows = zip(index.tolist(), offsets.tolist(), flips.tolist(), strict=True)
    assert torch.equal(found, torch.stack([slowly(images[i], r, c, f, 3) for i, (r, c), f in rows]))
    unflipped = crop_and_flip(images, index, offsets, None, padding=3)
    assert torch.equal(unflipped[[0, 4, 6]], found[[0, 4, 6]])
    assert torch.equal(unflipped[1].flip(-1), found[1])


def test_augmentation_is_the_crop_and_flip_of_the_plan() -> None:
    store = make_store()
    plan = episodes(store, augment=True).draw(2, generator(0, "draw"))
    assert plan.offsets is not None
    assert plan.flips is not None
    raw = crop_and_flip(store.images, plan.images[1], plan.offsets[1], plan.flips[1], crop_padding(12))
    plain = episodes(store)
    expected = raw.float().sub(plain.views._mean).mul(plain.views._scale)
    batch = episodes(store, augment=True).gather(plan)
    assert torch.equal(torch.cat([batch.support_x[1], batch.query_x[1]]), expected)


def test_all_offsets_and_both_directions_occur() -> None:
    source = episodes(make_store(), augment=True, padding=2)
    plan = source.draw(100, generator(0, "draw"))
    assert plan.offsets is not None
    assert plan.flips is not None
    assert plan.offsets.unique().tolist() == [0, 1, 2, 3, 4]
    assert abs(plan.flips.float().mean() - 0.5) < 0.05


def test_characters_are_never_mirrored() -> None:
    plan = episodes(make_store(mirror=False), augment=True).draw(2, generator(0, "draw"))
    assert plan.flips is None
    assert plan.offsets is not None


def test_augmentation_does_not_change_which_images_are_drawn() -> None:
    store = make_store()
    plans = [episodes(store, augment=a).draw(4, generator(0, "draw")) for a in (False, True)]
    assert torch.equal(plans[0].images, plans[1].images)
    assert plans[0].offsets is None


@pytest.mark.parametrize(("size", "padding"), [(28, 3), (32, 4), (84, 8)])
def test_the_padding_is_the_customary_one(size: int, padding: int) -> None:
    assert crop_padding(size) == padding


@pytest.mark.parametrize("augment", [False, True])
def test_images_kept_on_the_host_give_the_same_episodes(augment: bool) -> None:
    store = make_store()
    here, there = (
        episodes(store, augment=augment, placement=p).sample(3, generator(0, "draw"))
        for p in ("device", "host")
    )
    for a, b in zip(here.tensors(), there.tensors(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("placement", ["device", "host"])
def test_the_gpu_gives_the_very_bits_of_the_cpu(placement: str) -> None:
    store = make_store()
    cpu = episodes(store, augment=True).sample(3, generator(0, "draw"))
    source = episodes(store, augment=True, device="cuda", placement=placement)
    for a, b in zip(cpu.tensors(), source.sample(3, generator(0, "draw")).tensors(), strict=True):
        assert torch.equal(a, b.cpu())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gathering_can_be_captured_in_a_cuda_graph() -> None:
    source = episodes(make_store(), augment=True, device="cuda")
    held = source.draw(3, generator(0, "draw")).to("cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        source.gather(held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = source.gather(held)
    fresh = source.draw(3, generator(1, "draw"))
    for name in ("images", "offsets", "flips", "labels"):
        getattr(held, name).copy_(getattr(fresh, name))
    graph.replay()
    for a, b in zip(captured.tensors(), source.gather(fresh).tensors(), strict=True):
        assert torch.equal(a, b)


def test_low_precision_is_rounded_once_at_the_end() -> None:
    store = make_store()
    half = episodes(store, dtype=torch.bfloat16).sample(2, generator(0, "draw"))
    full = episodes(store).sample(2, generator(0, "draw"))
    assert torch.equal(half.support_x, full.support_x.bfloat16())
    assert half.support_y.dtype == torch.int64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ways": 9}, "ways 9: the train split of made has only 8 classes"),
        ({"split": "val", "ways": 3}, "shots 2 and queries 3: class held out 0 of made has only 4 images"),
        ({"split": "test"}, "ways 5: the test split of made has only 0 classes"),
        (
            {"queries": 5},
            "shots 2 and queries 5: class class 1 of made has only 6 images; .* shots 1 and queries 5 fit$",
        ),
        ({"shots": 0}, "shots 0: must be at least 1"),
    ],
)
def test_episodes_the_data_cannot_give_are_refused_with_what_there_is(options: dict, message: str) -> None:
    asked = {"split": "train", "ways": WAYS, "shots": SHOTS, "queries": QUERIES} | options
    with pytest.raises(UsageError, match=message):
        ImageEpisodes(make_store(), **asked)


def test_a_plan_can_be_cut_into_tasks() -> None:
    plan = EpisodePlan(torch.arange(12).view(4, 3))
    assert len(plan[1:3]) == 2
    assert plan[1:3].images.tolist() == [[3, 4, 5], [6, 7, 8]]
