from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tools.glyph_lists import MAX_SIMILARITY, SCRIPTS, unit_image

from pathaware.core.seeding import generator
from pathaware.data.catalogue import open_store
from pathaware.data.episodes import ImageEpisodes
from pathaware.data.glyphs import REQUIRED, covers, draw_class, make_glyphs
from pathaware.data.importers.source import class_lists
from pathaware.data.store import ImageStore

LISTS = class_lists("glyphs")


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    return make_glyphs(tmp_path_factory.mktemp("data") / "glyphs", drawings=6)


def test_whole_scripts_are_held_out() -> None:
    scripts = {split: {n.split("/")[0] for n in names} for split, names in LISTS.items()}
    assert scripts == {split: set(SCRIPTS[split]) for split in SCRIPTS}
    assert not scripts["train"] & (scripts["val"] | scripts["test"])
    assert not scripts["val"] & scripts["test"]


def test_no_two_characters_look_alike_and_every_one_is_in_the_fonts() -> None:
    codes = [int(n.partition("U+")[2], 16) for names in LISTS.values() for n in names]
    assert all(covers(font, code) for font in REQUIRED for code in codes)
    portraits = np.stack([unit_image(chr(code)) for code in codes])
    likeness = portraits @ portraits.T - 2 * np.eye(len(codes))
    assert likeness.max() < MAX_SIMILARITY + 0.05  # the margin is for other versions of the font renderer


def test_drawings_of_a_character_are_always_the_same_and_all_differ() -> None:
    first, again = draw_class("Ж", 20), draw_class("Ж", 20)
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first.reshape(20, -1), axis=0)) == 20
    assert not np.array_equal(draw_class("Щ", 20), first)


def test_every_drawing_shows_bright_ink_on_black(glyphs: ImageStore) -> None:
    bright = (glyphs.images > 128).flatten(1).float().mean(1)
    assert bright.min() > 0.003
    assert bright.max() < 0.75
    assert glyphs.images[:, 0, :, 0].float().mean() < 20  # ink seldom touches the edge
    assert not glyphs.manifest.mirror


def test_glyphs_are_kept_and_opened_the_next_time(glyphs: ImageStore) -> None:
    assert glyphs.folder is not None
    again = open_store("glyphs", glyphs.folder.parent)
    assert again.manifest == glyphs.manifest
    assert [p.name for p in glyphs.folder.parent.iterdir()] == ["glyphs"]
    again.verify()


def test_glyphs_stay_in_memory_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = make_glyphs(tmp_path / "file" / "glyphs", drawings=1)
    assert store.folder is None
    assert len(store) == sum(map(len, LISTS.values()))


def test_comparing_pixels_does_not_solve_glyphs_but_does_better_than_chance(glyphs: ImageStore) -> None:
    batch = ImageEpisodes(glyphs, "test", 5, 1, 5).sample(100, generator(0, "glyphs"))
    nearest = torch.cdist(batch.query_x.flatten(2), batch.support_x.flatten(2)).argmin(-1)
    accuracy = (batch.support_y.gather(1, nearest) == batch.query_y).float().mean()
    assert 0.3 < accuracy < 0.6
