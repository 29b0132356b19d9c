"""Commands in this process: starting Python and importing PyTorch takes seconds."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from pathaware.cli import main


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def pathaware(*words: object, cwd: Path | None = None, columns: int = 200) -> Ended:
    """Run a command and return how it ended and what it printed."""
    out, err, dtype = io.StringIO(), io.StringIO(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(cwd or Path.cwd()),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.setenv("COLUMNS", str(columns))
            with pytest.raises(SystemExit) as end:
                main([str(word) for word in words])
    finally:
        torch.set_default_dtype(dtype)
    code = end.value.code
    return Ended(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def done(*words: object, cwd: Path | None = None) -> str:
    """Run a command that must succeed; return what it printed."""
    ended = pathaware(*words, cwd=cwd)
    assert ended.code == 0, ended.err
    return ended.out


def refused(*words: object, cwd: Path | None = None) -> str:
    """Run a command that must be refused; return the error, which is one line."""
    ended = pathaware(*words, cwd=cwd)
    assert ended.code == 2, ended
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    return ended.err
