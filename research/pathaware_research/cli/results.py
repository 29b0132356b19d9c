"""`pathaware results`: check the records of results."""

from __future__ import annotations

import json as jsonlib
from collections import Counter
from pathlib import Path

import typer

from pathaware.cli.options import COMPUTE, Json, argument, examples, flag, panel_option, paragraphs

EXAMPLES = examples("pathaware results verify", "pathaware results verify paper/results --retrain")
app = typer.Typer(help="Check result records.", no_args_is_help=True, epilog=EXAMPLES)


@app.callback()
def _group() -> None:
    """Keeps `verify` a subcommand although it is the only one."""


def verify(
    folder: Path = argument("Folder of records.", "DIR", default=Path("results")),
    retrain: bool = flag(
        "--retrain",
        COMPUTE,
        "Also repeat the training of a random cheap record (sine waves or glyphs, on a CPU of the "
        "same kind) and compare it to the last bit.",
    ),
    seed: int | None = panel_option(
        None, COMPUTE, "Seed of the random choice.", shown="another each time", min=0
    ),
    json: Json = False,
) -> None:
    """Recompute the numbers of all records from their per-task values.

    Trainings are repeated to the last bit only on the same model of CPU and version of PyTorch; the command
    says how many can be, and why the others cannot. The exit code is 1 if a number does not follow from the
    values, or if a repeated training is not identical.
    """
    from pathaware_research import verification

    found = verification.verify(folder)
    possible, reasons = verification.repeatable(folder)
    mismatches = list(found.mismatches)
    trained = again = None
    if retrain:
        trained, record = verification.choose(folder, seed)
        if not json:
            typer.echo(f"training {trained} again", err=True)
        again = verification.retrain(record)
        mismatches += [f"{trained}: {line}" for line in again.mismatches]
    if json:
        content = {
            "checked": found.checked,
            "without_values": found.without_values,
            "others": found.others,
            "mismatches": mismatches,
            "repeatable": [name for name, _ in possible],
            "not_repeatable": reasons,
            "retrained": trained,
            "rounding": None if again is None else again.rounding,
        }
        print(jsonlib.dumps(content))
    else:
        for name in found.without_values:
            print(f"{name}: no values of single tasks, not checked")
        for line in mismatches:
            print(f"MISMATCH {line}")
        if again is not None and not again.mismatches:
            equal = "equal to the last bit"
            if again.differing:
                equal = f"tensors {equal}, errors of {again.differing} tasks to {again.rounding:.0e}"
            print(f"{trained}: trained again, {equal}")
        if found.others:
            kinds = Counter(Path(name).parent.as_posix() for name in found.others)
            told = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
            print(
                f"{len(found.others)} files without values of tasks, not checked: {told}; --json names them"
            )
        for reason, count in reasons.most_common():
            print(f"{count} trainings cannot be repeated here: {reason}")
        print(f"{len(possible)} trainings can be repeated here, one of them at random with --retrain")
        print(f"{len(found.checked)} records checked, {len(mismatches)} mismatches")
    raise typer.Exit(1 if mismatches else 0)


app.command("verify", help=paragraphs(verify), epilog=EXAMPLES)(verify)
