"""`pathaware serve RUN`: teach a trained model your own classes in a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pathaware.core.errors import UsageError


def serve(
    run: Annotated[Path, typer.Argument(help="Folder of a run on images, or `glyphs`.", metavar="RUN")],
    port: Annotated[int, typer.Option(help="Port; 0 for any free one.", min=0, max=65535)] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on; default: this machine only.")] = (
        "127.0.0.1"
    ),
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another name of this server, such as a proxy's.")
    ] = None,
    forget_after: Annotated[
        float, typer.Option(help="Minutes without a request after which a session is deleted.")
    ] = 10.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    open: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
) -> int:
    """Serve a web page and a JSON API with which people teach the model their own classes."""
    if not 0 < forget_after <= 1e6:  # also false for nan
        raise UsageError(f"must be a number of minutes above 0, not {forget_after}", field="forget_after")
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(f"serve: needs {error.name}; pip install 'pathaware[serve]'") from None
    from pathaware.inference.trained_model import TrainedModel
    from pathaware.serve.app import make_app
    from pathaware.serve.limits import Limits
    from pathaware.serve.server import address_of, bind, is_loopback
    from pathaware.serve.server import serve as answer
    from pathaware.serve.uploads import quiet

    model = TrainedModel.open(run, device)
    model.learner(model.ways)  # fail now, not at the first visitor's request
    limits = Limits(forget_minutes=forget_after)
    bound = bind(host, port)
    local = is_loopback(bound)
    app = make_app(model, run.resolve().name, limits, hosts=[host, *(allow_host or [])], addresses=not local)
    address = address_of(bound)
    if not local:
        print(
            f"warning: --host {host}: whoever reaches this machine can use the model; "
            "there is no password and no encryption",
            file=sys.stderr,
        )
    quiet()

    def ready() -> None:
        print(f"{model.config.method} from {run} at {address} (Ctrl-C ends it)", flush=True)
        if open:
            import webbrowser

            webbrowser.open(address)

    return answer(app, bound, limits, ready)
