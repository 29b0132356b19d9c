"""`pathaware reproduce` in this process."""

from __future__ import annotations

import pytest
import torch

from pathaware.cli import main


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def reproduce(capsys):
    """Runs the command in this process: exit code, standard output, standard error."""

    def run(*arguments: str, out) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit:
            main(["reproduce", *arguments, "--out", str(out)])
        return int(exit.value.code or 0), *capsys.readouterr()

    return run
