"""`pathaware suggest RUN --support DIR --images PATH`: which unlabelled images to label next."""

from __future__ import annotations

from pathlib import Path

import typer

from pathaware.cli.options import DATA, OUTPUT, Device, Json, examples, panel_option
from pathaware.cli.predict import Model, Support

EXAMPLES = examples(
    "pathaware suggest glyphs --support letters --images new",
    "pathaware suggest glyphs --support letters --images new --count 10 --json",
)


def suggest(
    run: Model,
    images: Path = panel_option(..., DATA, "Unlabelled images: a folder, zip or tar."),
    support: Support = None,
    count: int = panel_option(5, OUTPUT, "Number of images to list.", min=1),
    device: Device = "auto",
    json: Json = False,
) -> None:
    """List the unlabelled images whose labels would help most, the best first.

    They are typical of groups of images that are unlike the labelled ones. Label them, add them to the
    support set, and run the command again.
    """
    from json import dumps

    from pathaware.cli import one_line
    from pathaware.cli.options import open_model, print_problems, read_support
    from pathaware.inference.class_folders import read_images
    from pathaware.inference.suggest import suggest as choose

    model = open_model(run, device)
    labelled = read_support(support, model)
    found, pixels, problems = read_images(images, model.image_input)
    chosen = [found[i][1].label for i in choose(model, labelled, pixels, count)]
    if json:
        print(dumps({"pictures": chosen, "unlabelled": len(found)}))
    else:
        for name in chosen:
            print(one_line(name))
    if problems:
        print_problems(problems)
        raise typer.Exit(1)
