"""`pathaware export RUN --support DIR --to FORMAT`: write a network for your own classes to a file."""

from __future__ import annotations

import shlex
from json import dumps
from pathlib import Path

from pathaware.cli.options import COMPUTE, OUTPUT, TASKS, Json, Replace, examples, flag, panel_option
from pathaware.cli.predict import Model, Support

EXAMPLES = examples(
    "pathaware export glyphs --support letters --to torch --out letters.pt2",
    "pathaware export glyphs --support letters --to onnx --script",
    "pathaware export glyphs --learner --ways 5 --shots 1 --out learner.onnx",
)


def export(
    run: Model,
    support: Support = None,
    to: str | None = panel_option(
        None, OUTPUT, "Format: onnx, torch or safetensors.", shown="onnx for --learner"
    ),
    learner: bool = flag(
        "--learner",
        TASKS,
        "Write the learner itself instead of an adapted network: a file that learns new classes "
        "from --ways times --shots pictures.",
    ),
    ways: int | None = panel_option(
        None, TASKS, "With --learner: classes per task.", shown="as trained", min=2
    ),
    shots: int | None = panel_option(
        None, TASKS, "With --learner: pictures per class.", shown="as trained", min=1
    ),
    out: Path | None = panel_option(
        None,
        OUTPUT,
        "File to write.",
        shown="RUN.onnx, RUN.pt2 or RUN.safetensors; RUN-learner.onnx for --learner",
    ),
    script: bool = flag(
        "--script", OUTPUT, "Also write a Python script beside the file, which labels pictures with it."
    ),
    replace: Replace = False,
    device: str = panel_option("cpu", COMPUTE, "Where to adapt: auto, cpu, cuda or cuda:N."),
    json: Json = False,
) -> None:
    """Adapt to a few pictures and write the network to a file that runs without this package."""
    if learner:
        _export_learner(run, support, to, ways, shots, out, script, replace, json)
        return
    from pathaware.cli.options import adapt, must_be_new, open_model, read_support
    from pathaware.core.errors import UsageError
    from pathaware.data.store import counted
    from pathaware.inference.export.export import export as write
    from pathaware.inference.export.export import script_path, write_script
    from pathaware.inference.export.formats import get_format
    from pathaware.inference.trained_model import find_run

    for field, given in (("ways", ways), ("shots", shots)):
        if given is not None:
            raise UsageError("applies to --learner only", field=field)
    if to is None:
        raise UsageError("is needed, except for --learner", field="to")
    format = get_format(to)
    format.require_packages()
    path = out or Path(find_run(run).absolute().name + format.suffix)
    must_be_new("--out", path, replace)
    if script:
        must_be_new("--script", script_path(path), replace)
    model = open_model(run, device)
    labelled = read_support(support, model)
    done = write(adapt(model, labelled), labelled.classes, labelled.pixels, path, to)
    written = write_script(path, to) if script else None
    if json:
        found = {
            "file": str(done.path),
            "format": done.format,
            "bytes": done.bytes,
            "classes": labelled.classes,
            "pictures": done.images,
            "largest_difference": done.difference,
            "script": str(written) if written else None,
        }
        print(dumps(found))
        return
    print(
        f"{path}: {counted(len(labelled.classes), 'class')}, {done.bytes:,} bytes; probabilities of "
        f"{counted(done.images, 'picture')} differ from the package's by at most {done.difference:.1e}"
    )
    if written:
        print(f"{written}: python {shlex.quote(str(written))} picture.png …")


def _export_learner(
    run: str,
    support: Path | None,
    to: str | None,
    ways: int | None,
    shots: int | None,
    out: Path | None,
    script: bool,
    replace: bool,
    json: bool,
) -> None:
    from dataclasses import asdict

    from pathaware.cli.options import must_be_new, open_model
    from pathaware.core.errors import UsageError
    from pathaware.data.store import counted
    from pathaware.inference.export.learner import export_learner
    from pathaware.inference.trained_model import find_run

    if support is not None:
        raise UsageError("does not apply to --learner, which learns later", field="support")
    if to not in (None, "onnx"):
        raise UsageError(f"must be onnx for --learner, not {to}", field="to")
    if script:
        raise UsageError("does not apply to --learner", field="script")
    path = out or Path(f"{find_run(run).absolute().name}-learner.onnx")
    must_be_new("--out", path, replace)
    model = open_model(run, "cpu")  # the file is the same, and it is checked on a CPU
    done = export_learner(model, ways or model.ways, shots or model.shots, path)
    if json:
        print(dumps({**asdict(done), "path": str(path)}))
        return
    print(
        f"{path}: learns {done.ways} classes from {counted(done.shots, 'picture')} each, "
        f"{done.bytes:,} bytes; its probabilities differ from the package's by at most "
        f"{done.difference:.1e} on {counted(done.tasks, 'task')}"
    )
