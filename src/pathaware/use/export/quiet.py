"""Exporters are chatty, and meet what they cannot trace with many kinds of exception."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from pathaware.errors import UsageError

_LOGGERS = ("torch.onnx", "torch.export", "torch._export", "onnxscript", "onnx_ir")


@contextmanager
def untraceable_refused(format: str) -> Iterator[None]:
    """No notes about packages and deprecations of the exporter's own; a refusal in one line if it fails."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except OSError:
        raise
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UsageError(f"--to {format}: the adapted network cannot be traced ({reason.strip()})") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
