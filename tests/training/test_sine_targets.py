"""The paper's sine experiment at full length: minutes for each number of shots."""

from __future__ import annotations

import pytest
import torch

from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from tests.training.fits import trained


@pytest.mark.slow
@pytest.mark.parametrize(("shots", "bound"), [(5, 0.20), (10, 0.045), (20, 0.012)])
def test_pamela_reaches_its_error_and_no_task_runs_away(shots, bound):
    torch.set_default_dtype(torch.float32)
    config = Config.from_dict({"problem": {"name": "sine", "shots": shots}, "method": {"name": "pamela"}})
    errors = evaluate(trained(config), config.problem, tasks=10_000).values[:, -1]
    assert errors.mean() < bound
    assert errors.max() < 100
