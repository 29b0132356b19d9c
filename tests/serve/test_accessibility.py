"""What axe finds in each state of the page; its script is not part of this repository.

`PATHAWARE_AXE` names the file `axe.min.js` of the npm package `axe-core` (`npm pack axe-core`); without it
the test is skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.serve.browsing import Visit, browsing, file
from tests.serve.serving import CHARACTERS, drawings

AXE = os.environ.get("PATHAWARE_AXE")
FAKE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
pytestmark = pytest.mark.skipif(not AXE, reason="PATHAWARE_AXE does not name axe.min.js")


def violations(page) -> list[str]:
    found = page.evaluate("async () => (await axe.run()).violations")
    return [f"{each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize(
    "context",
    [{}, {"color_scheme": "dark"}, {"viewport": {"width": 360, "height": 740}}, {"locale": "de"}],
    ids=["light", "dark", "phone", "German"],
)
def test_axe_finds_nothing_in_any_state(server, context):
    shapes = {name: drawings(name, 4) for name in CHARACTERS}
    found: dict[str, list[str]] = {}
    with browsing(*FAKE) as browser:
        visit = Visit(browser, server.address, permissions=["camera"], **context)
        page = visit.page
        page.evaluate(Path(AXE or "").read_text(encoding="utf-8"))

        def look(state: str) -> None:
            found[state] = violations(page)

        look("empty")
        visit.card(0).locator(".draw").click()
        look("drawing")
        page.keyboard.press("Escape")
        visit.card(0).locator(".record").click()
        expect(page.locator("#record-hold")).to_be_enabled()
        look("recording")
        page.keyboard.press("Escape")
        visit.ask(file("early.png", shapes["lattice"][0]))
        visit.teach(0, file("notes.txt", b"no"), *(file(f"{i}.png", shapes["fork"][i]) for i in range(3)))
        visit.has(0, 3)
        visit.settle()
        look("one class, a refused file, and a question that waits")
        page.route("**/adapt", lambda route: None)
        visit.teach(1, *(file(f"{i}.png", shapes["hourglass"][i]) for i in range(3)))
        visit.has(1, 3)
        look("learning")
        page.unroute_all()
        page.reload()
        page.locator("body[data-ready]").wait_for()
        page.evaluate(Path(AXE or "").read_text(encoding="utf-8"))
        visit.learn()
        look("brought back")
        page.locator("#more summary").click()
        page.locator("#say-unknown").check()
        page.locator("#say-why").check()
        visit.ask(file("new.png", shapes["fork"][3]))
        expect(page.locator("#answers > li:not(.stale)")).to_have_count(2, timeout=30_000)
        page.locator("#suggest").click()
        expect(page.locator("#answers .next").first).to_be_visible(timeout=30_000)
        visit.teach(1, file("wrong.png", shapes["fork"][3]))
        visit.has(1, 4)
        visit.settle()
        page.locator("#check").click()
        expect(page.locator("#more-status")).not_to_contain_text("…", timeout=30_000)
        look("more about answers")
        page.locator("#answers .bar").first.click()
        page.locator("#accept").click()
        visit.settle()
        look("answers set right")
        page.locator("#keep summary").click()
        page.locator("#watch").click()
        expect(page.locator("#watch-bars .bar").first).to_be_visible()
        look("the camera is asked")
        visit.check()
        visit.context.close()
    assert [f"{state}: {each}" for state, some in found.items() for each in some] == []
    assert len(found) == 9
