"""`pathaware export RUN --support DIR --to FORMAT`: write a network for your own classes to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pathaware.cli.options import COMPUTE, OUTPUT, Json, Replace, examples, flag, panel_option
from pathaware.cli.predict import Model, Support

if TYPE_CHECKING:
    from pathaware.inference.export.export import Exported

EXAMPLES = examples(
    "pathaware export glyphs --support letters --to torch --out letters.pt2",
    "pathaware export glyphs --support letters --to onnx --script",
)


def export(
    run: Model,
    to: Annotated[str, panel_option(help="Format: onnx, torch or safetensors.", panel=OUTPUT)],
    support: Support = None,
    out: Annotated[
        Path | None,
        panel_option(help="File to write.", panel=OUTPUT, default="RUN.onnx, RUN.pt2 or RUN.safetensors"),
    ] = None,
    script: Annotated[
        bool,
        flag(
            "--script",
            help="Also write a Python script beside the file, which labels pictures with it.",
            panel=OUTPUT,
        ),
    ] = False,
    replace: Replace = False,
    device: Annotated[
        str, panel_option(help="Where to adapt: auto, cpu, cuda or cuda:N.", panel=COMPUTE)
    ] = "cpu",
    json: Json = False,
) -> None:
    """Adapt to a few pictures and write the network to a file that runs without this package."""
    from pathaware.cli.options import adapt, must_be_new, read_support
    from pathaware.inference.export.export import export as write
    from pathaware.inference.export.export import script_path, write_script
    from pathaware.inference.export.formats import get_format
    from pathaware.inference.trained_model import TrainedModel, find_run

    format = get_format(to)
    format.require_packages()
    path = out or Path(find_run(run).absolute().name + format.suffix)
    must_be_new("--out", path, replace)
    if script:
        must_be_new("--script", script_path(path), replace)
    model = TrainedModel.open(run, device)
    labelled = read_support(support, model)
    done = write(adapt(model, labelled), labelled.classes, labelled.pixels, path, to)
    written = write_script(path, to) if script else None
    if json:
        _print_json(done, labelled.classes, written)
        return
    print(
        f"{path}: {len(labelled.classes)} classes, {done.bytes:,} bytes; probabilities of {done.images} "
        f"pictures differ from the package's by at most {done.difference:.1e}"
    )
    if written:
        print(f"{written}: python {written} picture.png …")


def _print_json(done: Exported, classes: tuple[str, ...], script: Path | None) -> None:
    import json

    found = {
        "file": str(done.path),
        "format": done.format,
        "bytes": done.bytes,
        "classes": classes,
        "pictures": done.images,
        "largest_difference": done.difference,
        "script": str(script) if script else None,
    }
    print(json.dumps(found))
