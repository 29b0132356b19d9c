"""Trainings compute in single precision unless a test asks for more."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _single_precision(request: pytest.FixtureRequest) -> None:
    if not getattr(request.module, "IN_DOUBLE", False):
        torch.set_default_dtype(torch.float32)
