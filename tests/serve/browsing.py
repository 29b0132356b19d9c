"""A real browser, and pages that remember what they asked for."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.serve.serving import serving

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def program() -> str:
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        why = "no chromium on this machine; PATHAWARE_BROWSER=required makes that an error"
        if os.environ.get("PATHAWARE_BROWSER") == "required":
            pytest.fail(why)
        pytest.skip(why)
    return found


@contextmanager
def browsing(*arguments: str) -> Iterator[Browser]:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program(), args=["--no-sandbox", *arguments])
        yield browser
        browser.close()


class Visit:
    """A page, everything it asked for, and everything it complained of."""

    def __init__(self, browser: Browser, address: str, **context: Any) -> None:
        self.address = address
        # Steps show at once for those who want nothing to move, so tests need not wait for them.
        self.context = browser.new_context(**{"reduced_motion": "reduce", **context})
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready]")

    def _hear(self, message: Any) -> None:
        # Chromium logs every 4xx; that is an answer, not a mistake of the page.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    @property
    def session(self) -> str:
        """The path of its latest session."""
        return [m[0] for url in self.asked if (m := re.search(r"/api/sessions/[\w-]{20,}", url))][-1]

    def card(self, place: int) -> Any:
        return self.page.locator(".card").nth(place)

    def teach(self, place: int, *files: Path | dict[str, Any]) -> None:
        self.card(place).locator("input[type=file]").set_input_files(list(files))

    def drop(self, selector: str, *paths: Path) -> None:
        """Drop files and folders on a place, as from a file manager."""
        target = self.page.locator(selector).first
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        assert box
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        browser = self.context.new_cdp_session(self.page)
        for kind in ("dragEnter", "dragOver", "drop"):
            browser.send("Input.dispatchDragEvent", {"type": kind, **place, "data": data})

    def name(self, place: int, name: str) -> None:
        """Give a class another name."""
        field = self.page.get_by_label("Name of the class").nth(place)
        field.fill(name)
        field.blur()

    def has(self, place: int, count: int) -> None:
        """Wait until a class shows so many pictures."""
        expect(self.card(place).locator(".thumbs li")).to_have_count(count)

    def ask(self, *files: dict[str, Any]) -> None:
        self.page.set_input_files("#ask-files", list(files))

    def answered(self, count: int) -> None:
        """Wait until so many answers are for the present pictures."""
        expect(self.page.locator("#answers > li:not(.stale)")).to_have_count(count)

    def settle(self) -> None:
        """Wait until everything on screen is for the present pictures."""
        self.page.locator("body[data-live=idle]").wait_for()

    def learn(self) -> None:
        """Wait until the present pictures are learned."""
        self.page.locator("body[data-live=idle] #learned", has_text="→").wait_for()

    def check(self) -> None:
        """Nothing was asked of anybody else, and nothing went wrong that the page did not expect."""
        assert [url for url in self.asked if not url.startswith(self.address + "/")] == []
        assert self.complaints == []


@contextmanager
def visiting(browser: Browser, address: str, **context: Any) -> Iterator[Visit]:
    """A visit that is checked at its end."""
    made = Visit(browser, address, **context)
    yield made
    made.check()
    made.context.close()


@contextmanager
def served(
    browser: Browser,
    folder: Path,
    *arguments: str,
    limits: dict[str, Any] | None = None,
    model: str = "glyphs",
    **context: Any,
) -> Iterator[Visit]:
    """A visit to a server of its own, see `serving`."""
    with (
        serving(folder, *arguments, limits=limits, model=model) as server,
        visiting(browser, server.address, **context) as made,
    ):
        yield made


def file(name: str, content: bytes) -> dict[str, Any]:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}
