"""Where a number was made."""

from __future__ import annotations

import os
import platform

import torch

import pathaware


def environment() -> dict[str, str]:
    """Versions and hardware, without anything that names the machine or its user."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "pathaware": pathaware.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
        "cores": str(os.cpu_count()),
    }
