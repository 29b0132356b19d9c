"""`pathaware methods`: what can be trained."""

from __future__ import annotations


def methods() -> None:
    """List the methods, their papers and their settings."""
    from rich.console import Console
    from rich.table import Table

    from pathaware.methods import METHODS

    table = Table("method", "year", "what it does", "order", "transductive", "settings", "paper")
    for method in METHODS.values():
        settings = ", ".join(f"{k}={'none' if v is None else v}" for k, v in method.settings().items())
        transductive = "by design" if method.queries else "by batch norm"
        table.add_row(
            method.name,
            str(method.year),
            method.summary,
            method.order,
            transductive,
            settings,
            method.paper,
        )
    Console().print(table)
