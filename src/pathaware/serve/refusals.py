"""A request that is not granted."""

from __future__ import annotations


class Refused(Exception):
    """Answered with this status and one sentence in JSON; `retry` is when to ask again, in seconds."""

    def __init__(self, status: int, sentence: str, *, retry: int | None = None) -> None:
        self.status, self.sentence, self.retry = status, sentence, retry
        super().__init__(sentence)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry is None else {"Retry-After": str(self.retry)}
