"""`pathaware serve RUN`: teach a trained model your own classes in a browser."""

from __future__ import annotations

import sys
from pathlib import Path

from pathaware.cli.options import OUTPUT, Device, examples, open_model, panel_option
from pathaware.cli.predict import Model
from pathaware.core.errors import UsageError

EXAMPLES = examples(
    "pathaware serve glyphs --open",
    "pathaware serve glyphs --host 0.0.0.0 --allow-host models.example.org",
)
SERVER = "Server"


def serve(
    run: Model,
    port: int = panel_option(8765, SERVER, "Port to listen on; 0 for any free one.", min=0, max=65535),
    host: str = panel_option(
        "127.0.0.1", SERVER, "Address to listen on: 127.0.0.1 is this machine only, 0.0.0.0 every network."
    ),
    allow_host: list[str] | None = panel_option(
        None,
        SERVER,
        "Another name of this server, such as that of a proxy, or *.example.org. Can be repeated.",
        metavar="NAME",
    ),
    forget_after: float = panel_option(
        10.0, SERVER, "Minutes without a request after which a session is deleted."
    ),
    save_to: Path | None = panel_option(
        None, OUTPUT, "Folder of this machine in which visitors can save classifiers, too.", metavar="FOLDER"
    ),
    device: Device = "auto",
    open: bool = panel_option(False, OUTPUT, "Open the page in a browser.", "--open/--no-open"),
) -> int:
    """Serve a web page and a JSON API to teach the model your own classes."""
    if not 0 < forget_after <= 1e6:  # also false for nan
        raise UsageError(f"must be a number of minutes above 0, not {forget_after}", field="forget_after")
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        install = "in a clone of pathaware: pip install '.[serve]'"
        raise UsageError(f"serve: needs {error.name}; {install}") from None
    from pathaware.serve.app import make_app
    from pathaware.serve.limits import Limits
    from pathaware.serve.server import address_of, bind, is_loopback
    from pathaware.serve.server import serve as answer
    from pathaware.serve.uploads import quiet

    model = open_model(run, device)
    model.learner(model.ways)  # fail now, not at the first visitor's request
    limits = Limits(forget_minutes=forget_after).with_room_for(model.support)
    bound = bind(host, port)
    local = is_loopback(bound)
    app = make_app(
        model,
        Path(run).resolve().name,
        limits,
        hosts=[host, *(allow_host or [])],
        addresses=not local,
        save_to=save_to,
    )
    address = address_of(bound)
    if not local:
        print(
            f"warning: --host {host}: anyone who can reach this machine can use the model; "
            "there is no password and no encryption",
            file=sys.stderr,
        )
    quiet()

    def ready() -> None:
        print(f"{model.config.method} from {run} at {address} (stop with Ctrl-C)", flush=True)
        if open:
            import webbrowser

            webbrowser.open(address)

    return answer(app, bound, limits, ready)
