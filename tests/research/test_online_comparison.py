from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware import Episodes, GradientDescent, MetaLearner
from pathaware.core.errors import RunError
from pathaware.online.buffer import ReplaySample
from pathaware_research.online.baselines import (
    BASELINES,
    DescentSettings,
    FollowTheMetaLeader,
    StreamSetup,
    with_settings,
)
from pathaware_research.online.comparison import (
    candidate_settings,
    compare,
    early_error,
    interval,
    late_error,
    run,
    validate,
)
from pathaware_research.online.report import comparison_table, draw
from pathaware_research.online.streams import Stream, sine_stream
from tests.conftest import distance


@pytest.fixture
def stream() -> Stream:
    return sine_stream(4, 3)


def by_plain_descent(model: nn.Module, items: list[tuple[Tensor, Tensor]], rate: float, steps: int) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    for x, y in items:
        for _ in range(steps):
            optimiser.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimiser.step()


@pytest.mark.parametrize("fresh", [True, False], ids=["scratch", "tuning"])
def test_plain_descent_does_what_an_optimiser_does(fresh, stream):
    learner = DescentSettings(0.02, fresh=fresh).build(StreamSetup(stream, steps=2), seed=1)
    model = stream.network(1)
    for position, data_set in enumerate(stream.data_sets(1, 3)):
        if fresh:
            model = stream.network(1, position)
        by_plain_descent(model, list(data_set.items), 0.02, 2)
        learner.learn(data_set.items)
        x, _ = data_set.test
        assert distance(learner.predict(x), model(x)) < 1e-12
    assert learner.gradients == 3 * 4 * 2


def leader(model: nn.Module, **settings: object) -> FollowTheMetaLeader:
    usual = dict(rate=0.02, meta_rate=3e-3, replay=2, meta_steps=1, held_out=1, steps=3, seed=0)  # noqa: C408
    return FollowTheMetaLeader(model, F.mse_loss, **{**usual, **settings})


def test_the_leader_meta_trains_as_maml_does(stream):
    """With a single item the path is MAML's."""
    model = stream.network(0)
    samples = [ReplaySample(data_set.items[:1], data_set.items[1]) for data_set in stream.data_sets(0, 2)]
    maml = MetaLearner(model, GradientDescent(model, 3, rate=0.02), F.mse_loss, guard=False)
    columns = zip(*((*each.learned[0], *each.held_out) for each in samples), strict=True)
    expected = torch.autograd.grad(
        maml.meta_loss(Episodes(*map(torch.stack, columns))), list(model.parameters())
    )
    found = torch.autograd.grad(leader(model).paths.held_out_loss(samples), list(model.parameters()))
    assert all(distance(a, b) < 1e-12 for a, b in zip(found, expected, strict=True))


def test_the_leader_keeps_all_data_sets_and_adapts_to_the_last(stream):
    model = stream.network(0)
    each = leader(model)
    for data_set in stream.data_sets(0, 3):
        each.learn(data_set.items)
    assert len(each.seen) == 3
    adapted = stream.network(5)
    adapted.load_state_dict(model.state_dict())
    by_plain_descent(adapted, list(data_set.items), 0.02, 3)
    assert distance(each.predict(data_set.test[0]), adapted(data_set.test[0])) < 1e-12
    # Paths over three items with Hessians, and their ends: of one data set, then of two; and adapting.
    assert each.gradients == (1 + 2 + 2) * (2 * 3 * 3 + 1) + 3 * 4 * 3


def test_the_leader_holds_out_other_items_each_time(stream):
    each, (data_set,) = leader(stream.network(0), held_out=2), stream.data_sets(0, 1)
    parts = [each._sample(data_set.items) for _ in range(10)]
    assert {(len(part.learned), len(part.held_out[0])) for part in parts} == {(2, 6)}
    assert len({tuple(part.held_out[0].flatten().tolist()) for part in parts}) > 3


def test_every_learner_is_deterministic(stream):
    setup = StreamSetup(stream)
    for _, settings in BASELINES.values():
        first, again = (run(settings, setup, 3, 0) for _ in range(2))
        assert first.errors == again.errors
        assert first.gradients == again.gradients > 0
        assert len(first.errors) == 3


def test_the_online_learner_learns_to_learn_waves():
    torch.set_default_dtype(torch.float32)
    setup = StreamSetup(sine_stream())
    online, scratch = (
        run(with_settings(name, settings), setup, 60, 0).errors
        for name, settings in (("online", {"meta_rate": 5e-3}), ("scratch", {"rate": 0.02}))
    )
    assert late_error(online) < 0.5 * late_error(scratch)
    assert late_error(online) < 0.5 * early_error(online)


def test_settings_are_chosen_by_the_end_of_another_stream(stream):
    setup = StreamSetup(stream)
    tried = validate("scratch", [{"rate": 0.001}, {"rate": 1e6}, {"rate": 0.02}], setup, 6)
    assert [each["settings"]["rate"] for each in tried] == [0.02, 0.001, 1e6]
    assert tried[-1]["error"] is None
    errors = run(DescentSettings(0.02, fresh=True), setup, 6, 0, "validation").errors
    assert tried[0]["error"] == pytest.approx(sum(errors[3:]) / 3)
    assert errors != run(DescentSettings(0.02, fresh=True), setup, 6, 0).errors


def test_a_record_says_what_was_chosen_and_from_what(stream):
    record = compare(
        {"scratch": [{"rate": 0.001}, {"rate": 0.02}], "tuning": [{"rate": 0.01}]}, StreamSetup(stream), 8, 2
    )
    scratch, tuning = record["contestants"]["scratch"], record["contestants"]["tuning"]
    assert scratch["settings"]["rate"] == scratch["tried"][0]["settings"]["rate"]
    assert scratch["tried"][0]["error"] <= scratch["tried"][1]["error"]
    assert tuning["tried"] == []
    assert [len(errors) for errors in tuning["errors"]] == [8, 8]
    assert tuning["gradients_per_data_set"] == 4
    assert tuning["errors"][0] != tuning["errors"][1]


def test_a_learner_that_diverges_ends_the_comparison_with_advice(stream):
    with pytest.raises(RunError, match=r"tuning: diverged on data set \d of seed 0; .* such as tuning.rate="):
        compare({"tuning": [{"rate": 1e6}]}, StreamSetup(stream), 4, 1)


def test_intervals_are_by_students_t():
    mean, half = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3
    assert half == pytest.approx(2.776 * math.sqrt(2.5) / math.sqrt(5), rel=1e-9)
    assert math.isnan(interval([1.0])[1])


def test_what_is_given_is_set_in_every_candidate_and_leaves_no_choice_of_it():
    found = candidate_settings(
        "sine", ["scratch", "online"], {"scratch": {"rate": 0.3}, "online": {"buffer": 7}}
    )
    assert found["scratch"] == [{"rate": 0.3}]
    assert set(found) == {"scratch", "online"}
    assert len(found["online"]) > 1
    assert all(each["buffer"] == 7 for each in found["online"])


def record(seeds: int) -> dict:
    errors = [[4.0, 3.0, 2.0, 1.0 + 0.1 * seed] for seed in range(seeds)]
    part = {"errors": errors, "gradients_per_data_set": 12.0, "seconds": 1.0, "tried": []}
    contestants = {
        name: {"label": label, "settings": {"rate": 0.01}, **part} for name, (label, _) in BASELINES.items()
    }
    return {"metric": "mse", "tasks": 4, "seeds": list(range(seeds)), "contestants": contestants}


def test_the_table_has_means_intervals_and_costs():
    rows = comparison_table(record(2)).rows
    assert rows[0].cells == ("online, Algorithm 2", "4.000 ± 0.000", "1.050 ± 0.635", "12", "α₁ 0.01")
    assert comparison_table(record(1)).rows[0].cells[2] == "1.000"


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_figure_has_a_line_and_a_band_for_each(seeds):
    axes = draw(record(seeds)).axes[0]
    assert len(axes.lines) == 5
    assert len(axes.collections) == (0 if seeds == 1 else 5)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [4, 3, 2, 1 + 0.05 * (seeds - 1)])
    assert axes.get_yscale() == "log"
    assert axes.get_xlabel()
    assert axes.get_ylabel() == "mean squared error"
