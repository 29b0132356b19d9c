"""The files of the page: these and no others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/api.js": ("api.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
    "/pad.js": ("pad.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def add_pages(app: Starlette) -> None:
    folder = files("pathaware.serve") / "page"
    for address, (name, kind) in FILES.items():
        app.add_route(address, _page((folder / name).read_bytes(), kind), methods=["GET"])


def _page(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(_: Request) -> Response:
        return Response(content, media_type=kind)

    return page
