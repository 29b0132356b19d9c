"""What to label next."""

from __future__ import annotations

import torch

from pathaware.data import open_store
from pathaware.inference.suggest import coverage, suggest
from pathaware.inference.trained_model import SupportSet, TrainedModel


def test_it_chooses_the_middle_of_the_largest_group_without_a_label():
    angles = torch.tensor([0.0, 0.1, 1.4, 1.5, 1.6, 4.0], dtype=torch.float64)
    features = torch.stack([angles.cos(), angles.sin()], 1)
    labelled = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert coverage(labelled, features, 2) == [3, 5]
    assert sorted(coverage(labelled, features, 10)) == list(range(6))
    assert coverage(labelled, features[:0], 3) == []


def test_images_of_a_class_without_labels_come_first():
    glyphs = open_store("glyphs")
    starts = glyphs.split("test").starts[:3].tolist()
    support = SupportSet(("a", "b"), glyphs.images[starts[:2]], torch.tensor([0, 1]))
    pool = torch.cat([glyphs.images[start + 1 : start + 7] for start in starts])
    chosen = suggest(TrainedModel.open("glyphs", "cpu"), support, pool, 2)
    assert len(set(chosen)) == 2
    assert chosen[0] >= 12  # of the third class
