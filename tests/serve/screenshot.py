"""The pictures of the page: `python -m tests.serve.screenshot docs/images/serve.png`.

With `--answers`, that of `docs/answers.md`, in which "More about answers" is open. With `--photos`, that of
`docs/photos.md`.
"""

from __future__ import annotations

import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect
from sklearn.datasets import load_sample_image

from tests.serve.browsing import Visit, browsing, file
from tests.serve.serving import CHARACTERS, drawings, serving

Stroke = tuple[tuple[float, float], ...]
HOURGLASS: tuple[Stroke, ...] = (((0.27, 0.2), (0.75, 0.22), (0.3, 0.8), (0.74, 0.82), (0.27, 0.2)),)
FORK: tuple[Stroke, ...] = (((0.5, 0.15), (0.52, 0.85)), ((0.25, 0.2), (0.51, 0.5), (0.78, 0.18)))


def draw(page: Page, strokes: tuple[Stroke, ...]) -> None:
    pad = page.locator("#ask-pad")
    pad.scroll_into_view_if_needed()
    box = pad.bounding_box()
    assert box
    for stroke in strokes:
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=6)
        page.mouse.up()


def take(target: Path, **context: object) -> None:
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server, browsing() as browser:
        visit = Visit(browser, server.address, **context)
        page = visit.page
        page.get_by_role("button", name="Try it with examples").click()
        expect(page.locator(".thumbs li")).to_have_count(6)
        visit.learn()
        page.get_by_role("button", name="Ask about the examples").click()
        expect(page.locator("#answers > li")).to_have_count(6)
        for count, drawing in ((7, HOURGLASS), (8, FORK)):
            draw(page, drawing)
            page.get_by_role("button", name="Ask about the drawing").click()
            expect(page.locator("#answers > li")).to_have_count(count)
        draw(page, HOURGLASS)
        visit.settle()
        page.mouse.move(0, 0)
        page.locator("h1").click()
        page.screenshot(path=target, full_page=True)
        visit.check()


def take_answers(target: Path, **context: object) -> None:
    shapes = {name: drawings(name, 5) for name in CHARACTERS}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server, browsing() as browser:
        visit = Visit(browser, server.address, **context)
        page = visit.page
        for place, label in enumerate(("hourglass", "fork")):
            visit.name(place, label)
            visit.teach(place, *(file(f"{label} {i + 1}", p) for i, p in enumerate(shapes[label][:3])))
            visit.has(place, 3)
        page.locator("#more summary").click()
        page.locator("#say-unknown").check()
        page.locator("#say-why").check()
        asked = [("a fork", shapes["fork"][3]), ("an hourglass", shapes["hourglass"][3])]
        asked += [(f"a lattice {i + 1}", picture) for i, picture in enumerate(shapes["lattice"][:2])]
        visit.ask(*(file(name, picture) for name, picture in asked))
        expect(page.locator("#answers > li")).to_have_count(4, timeout=60_000)
        page.locator("#suggest").click()
        expect(page.locator("#answers .next").first).to_be_visible(timeout=60_000)
        visit.teach(1, file("hourglass 4.png", shapes["hourglass"][4]))
        visit.has(1, 4)
        visit.settle()
        page.locator("#check").click()
        expect(page.locator(".doubtful").first).to_be_visible(timeout=60_000)
        page.locator("h1").click()
        page.screenshot(path=target, full_page=True)
        visit.check()


def photographs() -> dict[str, list[bytes]]:
    """Parts of two photographs that come with scikit-learn, by danielbuechele and vultilion (CC BY 2.0)."""
    found: dict[str, list[bytes]] = {}
    for label, name in (("temple", "china.jpg"), ("flower", "flower.jpg")):
        whole = Image.fromarray(load_sample_image(name))
        for left, top, side in ((0, 40, 380), (130, 0, 400), (240, 20, 400), (90, 60, 360), (170, 10, 410)):
            part = BytesIO()
            whole.crop((left, top, left + side, min(top + side, whole.height))).save(part, "jpeg", quality=90)
            found.setdefault(label, []).append(part.getvalue())
    return found


def take_photos(target: Path, **context: object) -> None:
    with browsing() as browser:
        photograph_page(browser, target, **context)


def photograph_page(browser: Browser, target: Path, **context: object) -> None:
    """Teach two classes of photographs, ask about others, check the answers, and save a picture of it."""
    parts = photographs()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), model="photos") as server:
        visit = Visit(browser, server.address, **context)
        page = visit.page
        page.set_default_timeout(60_000)
        for place, (label, own) in enumerate(parts.items()):
            visit.name(place, label)
            visit.teach(place, *(file(f"{label} {i + 1}.jpg", p) for i, p in enumerate(own[:3])))
            expect(visit.card(place).locator(".thumbs li")).to_have_count(3, timeout=60_000)
        visit.learn()
        asked = [(f"{label} {i}.jpg", own[i - 1]) for label, own in parts.items() for i in (4, 5)]
        visit.ask(*(file(name, picture) for name, picture in asked))
        expect(page.locator("#answers > li")).to_have_count(4, timeout=60_000)
        for name, _ in asked:
            answer = page.locator("#answers > li").filter(has=page.get_by_role("img", name=name))
            expect(answer.locator("strong")).to_have_text(name.split()[0])
        page.locator("h1").click()
        page.screenshot(path=target, full_page=True)
        visit.check()


if __name__ == "__main__":
    phone = "--phone" in sys.argv
    width = 390 if phone else 1160
    scheme = "dark" if "--dark" in sys.argv else "light"
    view = {"width": width, "height": 800}
    shoot = take
    for option, other in (("--answers", take_answers), ("--photos", take_photos)):
        shoot = other if option in sys.argv else shoot
    shoot(Path(sys.argv[1]), viewport=view, device_scale_factor=1.5, color_scheme=scheme)
