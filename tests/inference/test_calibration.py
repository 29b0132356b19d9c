"""Temperatures and thresholds: fitted, stored, interpolated and applied."""

from __future__ import annotations

import json
import math

import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.inference.calibration import (
    CALIBRATION,
    SHARES,
    Calibration,
    Cell,
    fit_calibration,
    fit_temperature,
    grid,
    thresholds,
)
from pathaware.inference.export.export import export
from pathaware.inference.trained_model import TrainedModel
from pathaware.training.metric import reliability
from tests.inference.models import model, pixels, save_run


def cell(ways: int, shots: int, temperature: float, first: float = 1.0) -> Cell:
    return Cell(ways, shots, temperature, tuple(first - share for share in SHARES), 10)


def test_the_temperature_of_logits_that_are_too_large_is_found():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    assert fit_temperature(3 * logits, labels) == pytest.approx(3, rel=0.05)
    before, after = reliability(3 * logits, labels), reliability(3 * logits, labels, 3.0)
    assert before.error > 0.2
    assert after.error < 0.01


def test_a_model_without_mistakes_keeps_some_doubt():
    logits = torch.eye(3, dtype=torch.float64).repeat(10, 1)
    assert fit_temperature(logits, torch.arange(3).repeat(10)) > 0.1


def test_the_promised_share_of_new_scores_is_above_a_threshold():
    generator = torch.Generator().manual_seed(0)
    limits = thresholds(torch.rand(5000, generator=generator), (0.01, 0.05, 0.1))
    assert limits == pytest.approx((0.99, 0.95, 0.9), abs=0.01)
    assert thresholds(torch.tensor([1.0, 2.0, 3.0]), (0.25, 0.5)) == (3.0, 2.0)  # ⌈4 · 0.75⌉, ⌈4 · 0.5⌉


def test_between_cells_values_are_interpolated_in_logarithms_and_beyond_them_kept():
    found = Calibration((cell(2, 1, 1.0), cell(2, 4, 4.0), cell(8, 1, 1.0), cell(8, 4, 16.0)))
    assert found.temperature(2, 1) == pytest.approx(1)
    assert found.temperature(2, 2) == pytest.approx(2)
    assert found.temperature(4, 4) == pytest.approx(8)
    assert found.temperature(100, 50) == pytest.approx(16)
    assert found.temperature(2, 0.5) == pytest.approx(1)
    assert found.threshold(0.05, 3, 2) == pytest.approx(0.95)
    assert found.threshold(0.04, 3, 2) == pytest.approx(0.96)
    assert found.threshold(SHARES[-1], 2, 1) == pytest.approx(1 - SHARES[-1])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.51, -1.0, math.nan])
def test_shares_that_were_not_calibrated_are_refused(share):
    with pytest.raises(UsageError, match=r"0\.005 to 0\.5") as error:
        Calibration((cell(2, 1, 1.0),)).threshold(share, 2, 1)
    assert error.value.field == "unknown"


def reread(folder, change) -> Calibration | None:
    """A calibration whose file was changed meanwhile."""
    Calibration((cell(2, 1, 1.5),)).write(folder)
    content = json.loads((folder / CALIBRATION).read_text())
    change(content["cells"][0])
    (folder / CALIBRATION).write_text(json.dumps(content))
    return Calibration.read(folder)


def test_a_file_of_an_earlier_version_means_plain_distances(tmp_path):
    found = reread(tmp_path, lambda cell: cell.pop("spread_weight"))
    assert found is not None
    assert found.spread_weight(2, 1) == 0


def test_it_comes_back_from_its_file(tmp_path):
    made = Calibration((cell(2, 1, 1.5), cell(5, 1, 2.5)), seed=3)
    made.write(tmp_path)
    assert Calibration.read(tmp_path) == made
    assert Calibration.read(tmp_path / "elsewhere") is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"shares": [], "cells": []}', "null"])
def test_a_damaged_file_is_named(text, tmp_path):
    (tmp_path / CALIBRATION).write_text(text)
    with pytest.raises(UsageError, match=r"calibration\.json is damaged"):
        Calibration.read(tmp_path)


def test_a_temperature_that_is_not_positive_is_damage(tmp_path):
    with pytest.raises(UsageError, match="damaged"):
        reread(tmp_path, lambda cell: cell.update(temperature=0))


def test_probabilities_are_softened_by_the_temperature_of_the_run(tmp_path):
    folder = save_run(tmp_path / "run")
    task = pixels(4), torch.tensor([0, 0, 1, 1]), 2
    plain = TrainedModel.open(folder, "cpu").adapt(*task).probabilities(pixels(3, seed=1))
    Calibration((cell(2, 2, 4.0),)).write(folder)
    softened = TrainedModel.open(folder, "cpu").adapt(*task)
    expected = (plain.log() / 4).softmax(-1)
    torch.testing.assert_close(softened.probabilities(pixels(3, seed=1)), expected)
    done = export(softened, ("a", "b"), pixels(3), tmp_path / "a.safetensors", "safetensors")
    assert done.difference < 1e-5  # checked against the probabilities above


def test_calibration_takes_the_sizes_that_the_classes_allow():
    found = fit_calibration(model(ways=3), tasks=2, sizes=[(3, 1)])
    assert [(c.ways, c.shots, c.images) for c in found.cells] == [(3, 1, 60)]
    assert found.cells[0].spread_weight == 0  # one image has no spread
    counts: list[tuple[int, int]] = []
    sizes, count = [(3, 2)], lambda *each: counts.append(each)
    (several,) = fit_calibration(model(ways=3), tasks=2, sizes=sizes, progress=count).cells
    assert counts == [(each, 4) for each in (1, 2, 3, 4)]
    assert several.spread_weight > 0
    assert list(found.cells[0].thresholds) == sorted(found.cells[0].thresholds, reverse=True)
    assert {ways for ways, _ in grid(model(ways=7), "val")} == {2, 5, 7, 20}
    assert {shots for _, shots in grid(model(ways=7), "val")} == {1, 5}


def test_a_method_with_fixed_ways_is_calibrated_up_to_these():
    assert max(ways for ways, _ in grid(model("mann", ways=4), "val")) == 4


def test_the_shipped_model_is_calibrated():
    found = TrainedModel.open("glyphs", "cpu").calibration
    assert found is not None
    assert {(c.ways, c.shots) for c in found.cells} == {(w, s) for w in (2, 5, 20) for s in (1, 5)}
    assert all(c.images == 10_000 for c in found.cells)
