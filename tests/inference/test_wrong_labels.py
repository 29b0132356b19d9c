"""The study of labels that are marked as wrong: its folders, and the numbers of its records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pathaware.inference.influence import ODDS
from pathaware_research.studies.wrong_labels import drawn_folder, summary

RESULTS = Path(__file__).parents[2] / "results/use"


def test_a_folder_has_as_many_wrong_labels_as_asked():
    pixels = torch.arange(6 * 8, dtype=torch.uint8).view(6, 8, 1, 1, 1)
    support, wrong = drawn_folder(pixels, (4, 5, 3), seed=1)
    assert wrong.sum() == 3
    classes = support.pixels.flatten() // 8
    assert all(len(classes[i : i + 5].unique()) == 1 for i in range(0, 20, 5))
    right = support.labels[~wrong] == torch.arange(4).repeat_interleave(5)[~wrong]
    assert right.all()
    assert len(support.pixels.unique()) == 20
    assert torch.equal(drawn_folder(pixels, (4, 5, 3), seed=1)[0].labels, support.labels)


@pytest.mark.parametrize("split", ["val", "test"])
def test_recorded_shares_follow_from_the_counts_of_every_folder(split):
    record = json.loads((RESULTS / f"wrong-labels-{split}.json").read_text(encoding="utf-8"))
    assert (record["split"], record["dirty"]) == (split, False)
    for row in record["rows"]:
        for found in row["odds"].values():
            counts = found.pop("marked")
            assert len(counts) == record["draws"] >= 20
            assert summary(counts, row["wrong"]) == pytest.approx(found)


@pytest.mark.parametrize("split", ["val", "test"])
def test_the_rule_is_better_than_naming_every_mistake(split):
    record = json.loads((RESULTS / f"wrong-labels-{split}.json").read_text(encoding="utf-8"))
    for row in record["rows"]:
        ours, every = row["odds"][f"{ODDS:g}"], row["odds"]["1"]
        if row["wrong"]:
            assert ours["precision"] > 2 * every["precision"]
            assert ours["recall"] > 0.5
        assert ours["marked_per_folder"] < every["marked_per_folder"] / 3
