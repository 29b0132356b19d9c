"""Intervals over tasks and seeds, the bootstrap, and paired differences."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch

from pathaware.sweep.intervals import bootstrap, over_seeds, over_seeds_and_tasks
from pathaware.training.evaluation import interval_over_tasks
from pathaware.training.metric import ACCURACY, MSE
from pathaware.training.provenance import encode_values, identity
from pathaware_research.experiments import Result, Results
from pathaware_research.paired import mean_lead, paired_differences
from pathaware_research.paper.tables import sine_experiment, table2


def result(values: torch.Tensor, seed: int = 0, metric=MSE, method: str = "maml", **training) -> Result:
    """A record of a run whose tasks have these values."""
    if metric is MSE:
        experiment = sine_experiment(5, method)
    else:
        row = next(row for row in table2(lambda data: True).rows if row.key == method)
        experiment = row.cells["CIFAR-FS 5-shot"].experiment
    config = experiment.with_settings({"training": training}).config(seed, 100)
    record = {
        "config": config.to_dict(),
        "result": {
            metric.name: values.double().mean().item(),
            f"{metric.name}_ci95": interval_over_tasks(values.double()),
            "tasks": len(values),
            "split": "test",
            "queries": "batch",
            "balance": "balanced",
        },
        "identity": identity(config),
        "environment": {"device": "x86_64"},
        "task_values": encode_values(values),
    }
    return Result(record)


def without_values(found: Result) -> Result:
    return Result({key: value for key, value in found.record.items() if key != "task_values"})


def normal(seed: int, count: int = 400) -> torch.Tensor:
    return 0.5 + 0.1 * torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_one_seed_has_the_interval_over_tasks_only():
    values = normal(0).float()
    found = over_seeds_and_tasks([result(values, metric=ACCURACY)], ACCURACY)
    assert found.half_width == pytest.approx(1.96 * values.double().std().item() / 20, rel=1e-5)
    assert found.mean == pytest.approx(values.double().mean().item())
    assert found.median == pytest.approx(statistics.median(values.double().tolist()))


def test_several_seeds_add_students_interval():
    shifts = (0.0, 0.02, 0.04)
    values = [(normal(0) + shift).float() for shift in shifts]
    found = over_seeds_and_tasks([result(v, s, ACCURACY) for s, v in enumerate(values)], ACCURACY)
    seeds = 4.302653 * 0.02 / math.sqrt(3)  # Student's t with two degrees of freedom, as printed in tables
    assert over_seeds([float(v.double().mean()) for v in values]) == pytest.approx(seeds, rel=1e-4)
    assert found.half_width == pytest.approx(math.hypot(interval_over_tasks(normal(0)), seeds), rel=1e-4)
    assert found.seeds == 3


def test_an_interval_of_errors_ends_at_zero():
    found = over_seeds_and_tasks([result(v * normal(s).float(), s) for s, v in enumerate((0.1, 10.0))], MSE)
    assert found.low == 0 < found.mean < found.high
    points = [result(v * normal(s).float(), s, ACCURACY) for s, v in enumerate((0.1, 1.0))]
    assert over_seeds_and_tasks(points, ACCURACY).low < 0  # Student's interval of two seeds as it is


def test_an_interval_over_seeds_covers_the_mean_in_95_of_100_cases():
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        means = random.normal(0.7, 0.01, 3).tolist()
        inside += abs(sum(means) / 3 - 0.7) <= over_seeds(means)
    assert inside / 2000 == pytest.approx(0.95, abs=0.02)


def test_records_without_values_of_tasks_have_the_interval_they_state():
    found = over_seeds_and_tasks([without_values(result(normal(1).float()))], MSE)
    assert found.median is None
    assert found.half_width == pytest.approx(interval_over_tasks(normal(1).float().double()), rel=1e-6)


def test_the_bootstrap_agrees_with_the_normal_interval_and_is_skewed_where_errors_are():
    below, above = bootstrap(normal(2))
    assert below == pytest.approx(interval_over_tasks(normal(2)), rel=0.1)
    assert above == pytest.approx(below, rel=0.15)
    heavy = normal(3).sub(0.5).mul(20).exp()
    below, above = bootstrap(heavy)
    assert above > 1.1 * below


def test_differences_are_paired_by_seed_and_only_under_equal_conditions():
    one, other = normal(4).float(), normal(5).float()
    pamela = [result(one, seed, ACCURACY, "pamela") for seed in (0, 1)]
    maml = [result(other, seed, ACCURACY) for seed in (1, 2)]
    (difference,) = paired_differences(pamela, maml)
    assert torch.equal(difference, (one - other).double())
    assert not paired_differences(pamela, [result(other, 0, ACCURACY, guard=False)])
    assert not paired_differences(pamela, [result(other, 0, ACCURACY, validate=500)])
    warmed_up = [result(other, 0, ACCURACY, warmup=10)]
    assert not paired_differences(pamela, warmed_up)
    assert not paired_differences(pamela, warmed_up, except_for=["iterations"])
    record = result(other, 0, ACCURACY).record
    record["config"]["training"]["iterations"] *= 5
    longer = [Result(record)]
    assert not paired_differences(pamela, longer)
    assert torch.equal(paired_differences(pamela, longer, except_for=["iterations"])[0], difference)
    other_shots = result(other, 0, ACCURACY).record
    other_shots["config"]["problem"]["shots"] = 7
    assert not paired_differences(pamela, [Result(other_shots)])
    (shorter,) = paired_differences(pamela, [result(other[:9], 0, ACCURACY)])
    assert shorter.equal(difference[:9])  # an evaluation draws its tasks in a fixed order
    assert not paired_differences(pamela, [without_values(result(other, 0, ACCURACY))])


def test_a_lead_is_uncertain_over_tasks_and_seeds():
    tasks = normal(6) / 100
    assert mean_lead([tasks]) == f"{100 * tasks.mean():+.2f} ± {100 * interval_over_tasks(tasks):.2f}"
    moved = [tasks - tasks.mean() + lead for lead in (0.01, 0.02, 0.03)]
    seeds = 4.302653 / 3**0.5  # Student's quantile, and the standard error of the leads 1, 2, 3
    expected = math.hypot(100 * interval_over_tasks(tasks), seeds)
    assert mean_lead(moved) == f"+2.00 ± {expected:.2f}, 3 seeds"


def test_a_table_has_one_precision_that_of_its_experiments_if_there_is_one():
    spec = table2(lambda data: True)
    experiments = [row.cells["CIFAR-FS 5-shot"].experiment for row in spec.rows]
    in_bf16 = [result(normal(s).float(), s, ACCURACY, precision="bf16") for s in range(2)]
    in_tf32 = result(normal(9).float(), 0, ACCURACY, "pamela")
    maml, pamela = (
        next(row.cells["CIFAR-FS 5-shot"].experiment for row in spec.rows if row.key == key)
        for key in ("maml", "pamela")
    )
    found = Results(in_bf16).in_one_precision(experiments)
    assert (found.precision, len(found.of(maml))) == ("bf16", 2)
    found = Results([*in_bf16, in_tf32]).in_one_precision(experiments)
    assert (found.precision, len(found.of(maml)), len(found.of(pamela))) == ("tf32", 0, 1)


def test_older_records_have_a_level_and_a_version():
    old = result(normal(0).float()).record
    del old["identity"], old["result"]["queries"]
    for transductive, level in ((True, "batch"), (False, "alone")):
        old["result"]["transductive"] = transductive
        assert Result(old).queries == level
    assert Result(old).identity["method_version"] == 1
