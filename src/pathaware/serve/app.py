"""The web application: the page, its examples, and the JSON API around one trained model.

`docs/serving.md` describes every request.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI, Request, Response
from starlette.applications import Starlette
from starlette.types import ASGIApp
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.data.glyphs import draw_class
from pathaware.inference.calibration import check_share
from pathaware.inference.influence import reasons
from pathaware.inference.learning import measured_accuracy
from pathaware.inference.open_set import unknown_images
from pathaware.inference.suggest import suggest as next_to_label
from pathaware.inference.trained_model import SupportSet, TrainedModel
from pathaware.serve.api_error import ApiError, add_error_handlers
from pathaware.serve.limits import Limits
from pathaware.serve.saving import add_saving
from pathaware.serve.security import Protected
from pathaware.serve.sessions import Pixels, Session, Sessions, checked_label
from pathaware.serve.uploads import Uploads, read_image
from pathaware.serve.worker import Adaptations, Worker, probabilities, suspicious

# Example characters, from scripts that are not in the training split of glyphs.
CHARACTERS = {"hourglass": "\u2d35", "fork": "\U00010319", "lattice": "\u2d4c"}
SUPPORT, QUERIES = 2, 2


@dataclass(frozen=True)
class Example:
    """A drawing to try the model with."""

    label: str
    query: bool
    """Part of the query set, not of the support set."""
    png: bytes


@cache
def examples() -> tuple[Example, ...]:
    """Draw support and query images of each class, dark on white as a person would draw."""
    return tuple(
        Example(name, number >= SUPPORT, _png(torch.from_numpy(255 - pixels)))
        for name, character in CHARACTERS.items()
        for number, pixels in enumerate(draw_class(character, SUPPORT + QUERIES))
    )


KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def add_pages(app: Starlette) -> None:
    """Serve the files of the page, and no others."""
    folder = Path(__file__).parent / "page"
    for path in sorted(folder.rglob("*.*")):
        address = "" if path.name == "index.html" else path.relative_to(folder).as_posix()
        kind = f"{KINDS[path.suffix]}; charset=utf-8"
        app.add_route(f"/{address}", _page(path.read_bytes(), kind), methods=["GET"])


def _page(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(_: Request) -> Response:
        return Response(content, media_type=kind)

    return page


def make_app(
    model: TrainedModel,
    name: str,
    limits: Limits | None = None,
    *,
    hosts: Sequence[str] = (),
    addresses: bool = False,
    save_to: Path | None = None,
) -> ASGIApp:
    """Make the server's application; `hosts` and `addresses` are the names it accepts, see `Protected`.

    Visitors can save classifiers in the folder `save_to`, if there is one.
    """
    limits = limits or Limits()
    sessions, uploads = Sessions(limits), Uploads(limits)
    measured = None if model.folder is None else measured_accuracy(model.folder)
    # Adapting takes a while; uploads and predictions need not wait for it.
    adapting = Adaptations(model, limits.waiting)
    reading, explaining = (
        Worker(name, limits.waiting, limits.waiting_per_session) for name in ("read", "explain")
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(_delete_idle(sessions, limits))
        yield
        sweeper.cancel()
        adapting.close()
        reading.close()
        explaining.close()

    app = FastAPI(
        title="pathaware serve",
        openapi_url="/api/openapi.json",
        docs_url=None,  # these pages would load scripts from the network
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    add_error_handlers(app)
    add_pages(app)

    @app.get("/api/model")
    async def about() -> dict[str, Any]:
        form = model.image_input
        return {
            "name": name,
            "method": model.config.method,
            "ways": model.ways,
            "size": form.size,
            "channels": form.channels,
            "ink": form.ink,
            "saved": 0 if model.support is None else len(model.support.labels),
            "measured": measured,
            "calibrated": model.calibration is not None,
            "save_to": save_to is not None,
            "limits": asdict(limits),
        }

    @app.post("/api/sessions", status_code=201)
    async def begin(request: Request, saved: bool = False) -> dict[str, Any]:
        address = request.client.host if request.client else ""
        if not saved:
            return {"session": sessions.begin(address)}
        pictures = _saved_pictures(model, limits)
        sessions.check_room(sum(pixels.nbytes for _, pixels in pictures))
        token = sessions.begin(address, pictures)
        return {"session": token, "pictures": _listed(sessions.get(token))}

    @app.get("/api/sessions/{session}")
    async def look(session: str) -> dict[str, Any]:
        found = sessions.get(session)
        return {"classes": dict(found.counts), "adapted": found.adapted}

    @app.delete("/api/sessions/{session}", status_code=204)
    @app.post("/api/sessions/{session}/forget", status_code=204)  # a closing page can send nothing but POST
    async def end(session: str) -> None:
        sessions.end(session)

    async def received(session: str, request: Request) -> Pixels:
        """The image in the body of a request."""
        whose: Any = {"owner": session, "gone": request.is_disconnected}
        async with uploads.body(request) as raw:
            pixels: Pixels = await reading.run(read_image, raw, model.image_input, limits, **whose)
        return pixels

    @app.post("/api/sessions/{session}/pictures", status_code=201)
    async def add(session: str, label: str, request: Request) -> dict[str, str]:
        found = sessions.get(session)
        label = checked_label(label, limits.label_characters)
        found.check_room(label)  # before the body is read
        pixels = await received(session, request)
        sessions.check_room(pixels.nbytes)
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

    @app.post("/api/sessions/{session}/pictures/{picture}")
    async def correct(session: str, picture: str, label: str) -> dict[str, str]:
        label = checked_label(label, limits.label_characters)
        sessions.get(session).correct(picture, label)
        return {"picture": picture, "label": label}

    @app.post("/api/sessions/{session}/undo")
    async def undo(session: str) -> dict[str, Any]:
        found = sessions.get(session)
        found.undo()
        return {"pictures": _listed(found), "undoable": found.undoable}

    @app.post("/api/sessions/{session}/adapt")
    async def adapt(session: str) -> dict[str, Any]:
        found = sessions.get(session)
        support = found.support_set()
        found.adapting = True
        try:
            adapted = await adapting.adapt(support)
            sessions.check_room(adapted.own_bytes)
            found.set_adapted(support, adapted)
        finally:
            found.adapting = False
        steps = [_finite(asdict(step)) for step in adapted.steps]
        warning = _warning(model, support.pixels)
        return {"classes": list(support.classes), "steps": steps, "warning": warning}

    @app.post("/api/sessions/{session}/classify")
    async def classify(
        session: str,
        request: Request,
        unknown: float | None = None,
        why: bool = False,
        keep: bool = False,
        picture: str | None = None,
    ) -> dict[str, Any]:
        found = sessions.get(session)
        if unknown is not None:
            _check_unknown(unknown)
        found.classifier()  # before the body is read
        whose: Any = {"owner": session, "gone": request.is_disconnected}
        pixels = await received(session, request) if picture is None else found.kept(picture)
        classes, adapted = found.classifier()
        support = found.learned()
        values = await reading.run(probabilities, adapted, pixels, **whose)
        label, image = int(np.argmax(values)), torch.from_numpy(pixels)[None]
        answer: dict[str, Any] = {
            "label": classes[label],
            "probabilities": dict(zip(classes, values, strict=True)),
            "warning": _warning(model, image),
        }
        if unknown is not None:
            asked = (model, adapted, support, image, unknown)
            (answer["unknown"],) = await reading.run(unknown_images, *asked, **whose)
        if why:
            (reason,) = await explaining.run(reasons, model, support, image, torch.tensor([label]), **whose)
            for side, pairs in (("for", reason.positive), ("against", reason.negative)):
                answer[side] = [{"picture": support.names[i], "influence": value} for i, value in pairs]
        if keep:
            sessions.check_room(pixels.nbytes)
            answer["picture"] = sessions.get(session).keep(pixels)
        return answer

    @app.post("/api/sessions/{session}/check")
    async def check(session: str, request: Request) -> dict[str, Any]:
        support = sessions.get(session).support_set()
        gone = request.is_disconnected
        found = await explaining.run(suspicious, model, support, owner=session, gone=gone)
        return {
            "suspicious": [
                {"picture": support.names[i], "score": score, "likelier": support.classes[other]}
                for i, score, other in found
            ]
        }

    @app.post("/api/sessions/{session}/suggest")
    async def suggest(session: str, request: Request, count: int = 3) -> dict[str, Any]:
        found = sessions.get(session)
        support, pool = found.learned(), dict(found.unlabelled)
        if not pool:
            raise ApiError(409, "no pictures were kept; classify some with ?keep=true first")
        if not 1 <= count <= limits.pictures:
            raise ApiError(422, f"count: must be 1 to {limits.pictures}")
        pixels, gone = torch.from_numpy(np.stack(list(pool.values()))), request.is_disconnected
        chosen = await explaining.run(next_to_label, model, support, pixels, count, owner=session, gone=gone)
        names = list(pool)
        return {"pictures": [names[i] for i in chosen]}

    @app.get("/api/examples")
    async def list_examples() -> list[dict[str, Any]]:
        if not model.image_input.ink:
            raise ApiError(404, "examples exist only for models of ink drawings")
        drawn = await reading.run(examples)
        return [
            {"label": e.label, "asked": e.query, "picture": f"/api/examples/{i}.png"}
            for i, e in enumerate(drawn)
        ]

    @app.get("/api/examples/{number}.png", response_class=Response)
    async def example(number: str) -> Response:
        drawn = await reading.run(examples) if model.image_input.ink else ()
        if number not in map(str, range(len(drawn))):
            raise ApiError(404, "there is no such example")
        return Response(drawn[int(number)].png, media_type="image/png")

    @app.get("/api/saved")
    async def list_saved() -> list[dict[str, Any]]:
        saved = _saved_support(model)
        labels = [saved.classes[label] for label in saved.labels.tolist()]
        return [{"label": label, "picture": f"/api/saved/{i}.png"} for i, label in enumerate(labels)]

    @app.get("/api/saved/{number}.png", response_class=Response)
    async def saved_picture(number: str) -> Response:
        count = 0 if model.support is None else len(model.support.labels)
        if model.support is None or number not in map(str, range(count)):
            raise ApiError(404, "there is no such picture")
        return Response(_png(model.support.pixels[int(number)]), media_type="image/png")

    add_saving(app, sessions, model, explaining, save_to)
    return Protected(app, hosts, addresses=addresses)


def _png(pixels: Tensor) -> bytes:
    """Encode pixels `[C, H, W]` without loss."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray((pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)).numpy()).save(file, "PNG")
    return file.getvalue()


def _saved_support(model: TrainedModel) -> SupportSet:
    if model.support is None:
        raise ApiError(404, "the model is not a saved classifier, so it has no pictures")
    return model.support


def _saved_pictures(model: TrainedModel, limits: Limits) -> list[tuple[str, Pixels]]:
    """Label and pixels of each picture of a saved classifier."""
    saved = _saved_support(model)
    labels = [checked_label(name, limits.label_characters) for name in saved.classes]
    pairs = zip(saved.labels.tolist(), saved.pixels, strict=True)
    return [(labels[i], pixels.numpy()) for i, pixels in pairs]


def _listed(session: Session) -> list[dict[str, str]]:
    """Id and label of each picture of a session."""
    return [{"picture": name, "label": label} for name, (label, _) in session.pictures.items()]


def _check_unknown(share: float) -> None:
    try:
        check_share(share)
    except UsageError as error:
        raise ApiError(422, f"?unknown=: {error.message}") from None


def _warning(model: TrainedModel, pixels: Tensor) -> str | None:
    """A sentence if these pictures look unlike those that the model was trained on."""
    return None if model.typical is None else model.typical.warning(pixels)


def _finite(numbers: dict[str, float]) -> dict[str, float | None]:
    """Replace numbers that JSON cannot represent by None."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


async def _delete_idle(sessions: Sessions, limits: Limits) -> None:
    while True:
        await asyncio.sleep(min(30.0, 15 * limits.forget_minutes))
        sessions.delete_idle()
