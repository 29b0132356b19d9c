"""The JSON API and the page, around one trained model. `docs/serving.md` describes every request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from pathaware.serve.answers import answer_errors
from pathaware.serve.decoding import read_picture
from pathaware.serve.engine import Engine
from pathaware.serve.examples import examples
from pathaware.serve.guard import Guard
from pathaware.serve.labels import checked_label
from pathaware.serve.limits import Limits
from pathaware.serve.pages import add_pages
from pathaware.serve.refusals import Refused
from pathaware.serve.sessions import Sessions, network_bytes
from pathaware.serve.uploads import Uploads
from pathaware.serve.work import Worker
from pathaware.use.model import TrainedModel


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
