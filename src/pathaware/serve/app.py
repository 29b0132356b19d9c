"""Every error is one sentence in JSON; what went wrong in our own code stays on our own stderr."""

from __future__ import annotations

import asyncio
import math
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from pathaware.data.glyphs import draw_class
from pathaware.inference.trained_model import TrainedModel
from pathaware.serve.limits import Limits, Refused, refusal
from pathaware.serve.security import Guard
from pathaware.serve.sessions import Sessions, checked_label, network_bytes
from pathaware.serve.uploads import Uploads, read_picture
from pathaware.serve.worker import Engine, Worker

WORDS = {404: "there is nothing at this address", 405: "this address does not take this method"}


def answer_errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return refusal(error)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> JSONResponse:
        sentence = WORDS.get(error.status_code, "this request cannot be answered")
        return JSONResponse({"error": sentence}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def incomplete(_: Request, error: RequestValidationError) -> JSONResponse:
        names = " and ".join(sorted({f"?{found['loc'][-1]}=" for found in error.errors()}))
        return JSONResponse({"error": f"the address lacks {names}"}, 422)

    @app.exception_handler(Exception)
    async def our_fault(_: Request, error: Exception) -> JSONResponse:
        print("".join(traceback.format_exception(error)), file=sys.stderr)
        return JSONResponse({"error": "something went wrong in the server; its terminal says what"}, 500)


# Glyphs to try a model with, for somebody who has no pictures at hand.


# Of scripts that no glyph model has seen in training; they look like what they are called here.
CHARACTERS = {"hourglass": "\u2d35", "fork": "\U00010319", "lattice": "\u2d4c"}
TAUGHT, ASKED = 2, 2


@dataclass(frozen=True)
class Example:
    label: str
    asked: bool
    """For the question, not for the lesson."""
    png: bytes


@cache
def examples() -> tuple[Example, ...]:
    """Of each class some drawings to teach and some to ask about, dark on paper as a person would draw."""
    from PIL import Image

    found = []
    for name, character in CHARACTERS.items():
        for place, pixels in enumerate(draw_class(character, TAUGHT + ASKED)[:, 0]):
            file = BytesIO()
            Image.fromarray(255 - pixels).save(file, "PNG")
            found.append(Example(name, place >= TAUGHT, file.getvalue()))
    return tuple(found)


# The files of the page: these and no others.


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


# The JSON API and the page, around one trained model. `docs/serving.md` describes every request.


def make_app(
    model: TrainedModel,
    name: str,
    limits: Limits | None = None,
    *,
    hosts: Iterable[str] = (),
    addresses: bool = False,
) -> ASGIApp:
    """The server's application; `hosts` and `addresses` are what else it may be called, see `Guard`."""
    limits = limits or Limits()
    sessions, uploads, engine = Sessions(limits), Uploads(limits), Engine(model)
    # Adapting takes a while; pictures and questions need not wait for it.
    learning, reading = Worker("adapt", limits.waiting), Worker("read", limits.waiting)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(_forget_idle(sessions, limits))
        yield
        sweeper.cancel()
        learning.close()
        reading.close()

    app = FastAPI(
        title="pathaware serve",
        openapi_url="/api/openapi.json",
        docs_url=None,  # these pages would load scripts from the network
        redoc_url=None,
        redirect_slashes=False,
        lifespan=life,
    )
    answer_errors(app)
    add_pages(app)

    @app.get("/api/model")
    async def about() -> dict[str, Any]:
        form = model.pictures
        return {
            "name": name,
            "method": model.config.method,
            "ways": model.ways,
            "size": form.size,
            "channels": form.channels,
            "ink": form.ink,
            "limits": asdict(limits),
        }

    @app.post("/api/sessions", status_code=201)
    async def begin() -> dict[str, str]:
        return {"session": sessions.begin()}

    @app.get("/api/sessions/{session}")
    async def look(session: str) -> dict[str, Any]:
        found = sessions.get(session)
        return {"classes": dict(found.counts), "adapted": found.adapted}

    @app.delete("/api/sessions/{session}", status_code=204)
    @app.post("/api/sessions/{session}/forget", status_code=204)  # all that a page that closes can send
    async def end(session: str) -> None:
        sessions.end(session)

    @app.post("/api/sessions/{session}/pictures", status_code=201)
    async def add(session: str, label: str, request: Request) -> dict[str, str]:
        found = sessions.get(session)
        label = checked_label(label, limits.label_characters)
        found.room_for(label)  # before anything is read
        async with uploads.body(request) as raw:
            pixels = await reading.run(read_picture, raw, model.pictures, limits.pixels)
        sessions.room_for(pixels.nbytes)
        return {"picture": sessions.get(session).add(label, pixels), "label": label}

    @app.delete("/api/sessions/{session}/pictures/{picture}", status_code=204)
    async def remove(session: str, picture: str) -> None:
        sessions.get(session).remove(picture)

    @app.delete("/api/sessions/{session}/labels/{label:path}", status_code=204)
    async def remove_label(session: str, label: str) -> None:
        sessions.get(session).remove_label(label)

    @app.post("/api/sessions/{session}/labels/{label:path}")
    async def rename(session: str, label: str, to: str) -> dict[str, str]:
        to = checked_label(to, limits.label_characters)
        sessions.get(session).rename(label, to)
        return {"label": to}

    @app.post("/api/sessions/{session}/adapt")
    async def adapt(session: str) -> dict[str, Any]:
        found = sessions.get(session)
        lesson = found.lesson()
        found.adapting = True
        try:
            network = await learning.run(engine.adapt, lesson)
            sessions.room_for(network_bytes(network))
            found.learned(lesson, network)
        finally:
            found.adapting = False
        return {"classes": list(lesson.classes), "steps": [_finite(asdict(step)) for step in network.steps]}

    @app.post("/api/sessions/{session}/classify")
    async def classify(session: str, request: Request) -> dict[str, Any]:
        found = sessions.get(session)
        found.network()  # before anything is read
        async with uploads.body(request) as raw:
            pixels = await reading.run(read_picture, raw, model.pictures, limits.pixels)
        classes, network = found.network()
        answer = await reading.run(engine.probabilities, network, pixels)
        probabilities = dict(zip(classes, answer, strict=True))
        return {"label": max(classes, key=probabilities.__getitem__), "probabilities": probabilities}

    @app.get("/api/examples")
    async def list_examples() -> list[dict[str, Any]]:
        if not model.pictures.ink:
            raise Refused(404, "there are examples for models of ink only")
        found = await reading.run(examples)
        return [
            {"label": e.label, "asked": e.asked, "picture": f"/api/examples/{i}.png"}
            for i, e in enumerate(found)
        ]

    @app.get("/api/examples/{place}.png", response_class=Response)
    async def example(place: str) -> Response:
        found = await reading.run(examples) if model.pictures.ink else ()
        if place not in map(str, range(len(found))):
            raise Refused(404, "there is no such example")
        return Response(found[int(place)].png, media_type="image/png")

    return Guard(app, hosts, addresses=addresses)


def _finite(numbers: dict[str, float]) -> dict[str, float | None]:
    """JSON knows no infinity."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


async def _forget_idle(sessions: Sessions, limits: Limits) -> None:
    while True:
        await asyncio.sleep(min(30.0, 15 * limits.forget_minutes))
        sessions.forget_idle()
