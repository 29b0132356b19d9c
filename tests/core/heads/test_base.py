"""What heads share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from pathaware.core.head import one_hot


def test_classes_become_rows_and_values_stay():
    targets, like = torch.randint(0, 3, (2, 5)), torch.zeros(1, dtype=torch.float32)
    rows = one_hot(targets, 3, like)
    assert rows.dtype == torch.float32
    assert torch.equal(rows, F.one_hot(targets, 3).float())
    values = torch.randn(2, 5, 1)
    assert one_hot(values, 1, like) is values


def test_classes_become_rows_in_a_trace_of_other_classes():
    """Compiled iterations are traced once and then meet other labels."""
    traced = make_fx(lambda targets: one_hot(targets, 3, torch.zeros(1)))(torch.zeros(2, 5, dtype=torch.long))
    targets = torch.randint(0, 3, (2, 5))
    assert torch.equal(traced(targets), F.one_hot(targets, 3).to(torch.get_default_dtype()))
