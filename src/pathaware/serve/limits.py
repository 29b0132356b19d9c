"""A request that is not granted."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import JSONResponse


class Refused(Exception):
    """Answered with this status and one sentence in JSON; `retry` is when to ask again, in seconds."""

    def __init__(self, status: int, sentence: str, *, retry: int | None = None) -> None:
        self.status, self.sentence, self.retry = status, sentence, retry
        super().__init__(sentence)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry is None else {"Retry-After": str(self.retry)}


# How much a server takes on, all in one place; `docs/serving.md` has the same table.


@dataclass(frozen=True)
class Limits:
    """Nobody can make the server hold or compute more than this."""

    upload_bytes: int = 10 * 2**20
    """Bytes of an image file."""
    upload_seconds: float = 30.0
    """Time for a file to arrive."""
    uploads_in_memory: int = 128 * 2**20
    """Bytes of files that are on their way or being decoded, of all sessions together."""
    pixels: int = 25_000_000
    """Width × height of an image; a photograph has some 12 million."""
    classes: int = 20
    """Classes of a session."""
    pictures_per_class: int = 50
    """Pictures of a class."""
    pictures: int = 200
    """Pictures of a session."""
    label_characters: int = 64
    """Characters of a label."""
    sessions: int = 200
    """Sessions at a time."""
    kept_bytes: int = 512 * 2**20
    """Bytes of scaled pictures and adapted networks, of all sessions together."""
    forget_minutes: float = 10.0
    """Time without a request after which a session is forgotten."""
    waiting: int = 200
    """Requests that wait for their turn to be computed."""
    connections: int = 1000
    """Connections at a time."""


def refusal(refused: Refused) -> JSONResponse:
    return JSONResponse({"error": refused.sentence}, refused.status, refused.headers)
