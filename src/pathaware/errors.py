"""The one error a person can cause: a setting or a file that cannot be used."""

from __future__ import annotations


class UsageError(ValueError):
    """Something the caller gave cannot be used.

    Its message is one line that names the setting or file and says what is allowed. The command line
    prints that line and exits with code 2; in Python it is an ordinary `ValueError`.
    """
