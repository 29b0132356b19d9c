"""`pathaware export RUN --support DIR --to FORMAT`: write a network for your own classes to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pathaware.cli.options import Json

if TYPE_CHECKING:
    from pathaware.inference.export.export import Exported


def export(
    run: Annotated[str, typer.Argument(help="Folder of a run on images, or `glyphs`.", metavar="RUN")],
    support: Annotated[Path, typer.Option(help="Folder, zip or tar with one folder of pictures per class.")],
    to: Annotated[str, typer.Option(help="onnx, torch or safetensors.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write (default: NAME.onnx, .pt2 or .safetensors).")
    ] = None,
    script: Annotated[
        bool,
        typer.Option("--script", help="Also write NAME.py, which labels pictures with the file."),
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite existing files.")] = False,
    device: Annotated[str, typer.Option(help="Where to adapt: auto, cpu, cuda or cuda:N.")] = "cpu",
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
