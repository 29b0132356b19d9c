"""The page in a real browser, as people meet it: with a mouse, with keys only, and when things go wrong."""

from __future__ import annotations

import csv
import re
import time
from itertools import pairwise

import httpx
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.serve.browsing import Visit, file, served
from tests.serve.screenshot import photograph_page
from tests.serve.serving import encoded, png, saved_classifier, serving

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def taught(visit) -> Visit:
    visit.teach(0, file("one.png", png(1)), file("two.png", png(2)))
    visit.teach(1, file("three.png", png(3)))
    expect(visit.page.locator(".thumbs li")).to_have_count(3)
    return visit


def test_two_classes_are_taught_learned_and_told_apart(taught, client):
    page = taught.page
    taught.name(0, EVIL)
    expect(taught.card(0)).to_have_attribute("aria-label", f"Class {EVIL}")
    expect(taught.card(0).locator(".count")).to_have_text("2 of 50 pictures")
    taught.learn()
    expect(page.locator("#step-losses td")).to_have_count(6)
    expect(page.locator(".chart .dot")).to_have_count(12)
    taught.ask(file("new.png", png(2)))
    answer = page.locator("#answers > li:not(.stale)")
    expect(answer).to_have_count(1)
    assert answer.locator("strong").inner_text() in (EVIL, "Class 2")
    assert EVIL in answer.inner_text()  # as text: had it been HTML, the page would have asked for "x"
    shares = answer.locator(".bar-number").all_inner_texts()
    assert sum(float(share.rstrip(" %")) for share in shares) == pytest.approx(100, abs=0.2)
    assert client.get(taught.session).json() == {"classes": {EVIL: 2, "Class 2": 1}, "adapted": True}


def test_answers_can_be_saved_as_a_table(taught):
    page = taught.page
    taught.name(0, 'a "big", label')
    taught.name(1, "label")
    taught.learn()
    save = page.get_by_role("button", name="Save the answers as a table")
    expect(save).to_be_hidden()
    taught.ask(file("première.png", png(1)), file("2.png", png(2)))
    taught.answered(2)
    with page.expect_download() as started:
        save.click()
    assert started.value.suggested_filename == "answers.csv"
    with open(started.value.path(), encoding="utf-8-sig", newline="") as saved:
        header, *rows = csv.reader(saved)
    assert header == ["picture", "label", "probability", 'a "big", label', "label (class)"]
    assert [row[0] for row in rows] == ["première.png", "2.png"]
    for row in rows:
        numbers = [float(cell) for cell in row[3:]]
        assert float(row[2]) == max(numbers)
        assert row[1] == ('a "big", label', "label")[numbers.index(max(numbers))]
        assert sum(numbers) == pytest.approx(1, abs=1e-5)


def test_a_removed_picture_or_class_is_gone_from_the_server_too(taught, client):
    page = taught.page
    taught.learn()
    page.get_by_role("button", name="Remove one.png from Class 1").click()
    taught.settle()
    assert client.get(taught.session).json()["classes"] == {"Class 1": 1, "Class 2": 1}
    page.get_by_role("button", name="Remove the class Class 2").click()
    expect(page.locator(".card")).to_have_count(1)
    taught.settle()
    expect(page.locator("#learned")).to_contain_text("Two classes with pictures are needed")
    page.get_by_label("Add pictures to Class 1").set_input_files([file("new.png", png(5))])
    expect(page.locator(".thumbs li")).to_have_count(2)
    taught.settle()
    assert client.get(taught.session).json()["classes"] == {"Class 1": 2}


def test_pictures_can_be_dropped(visit, tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(png(1))
    for place, names in enumerate((("0.png", "1.png"), ("2.png",))):
        visit.drop(f".card >> nth={place}", *(tmp_path / name for name in names))
        visit.has(place, len(names))


def test_folders_can_be_dropped(visit, tmp_path):
    for name in ("birds/barn owl", "birds/Eule", "new/inner", "empty"):
        (tmp_path / name).mkdir(parents=True)
    for number, name in enumerate(("barn owl/1.png", "barn owl/2.PNG", "Eule/.hidden.png", "Eule/1.png")):
        (tmp_path / "birds" / name).write_bytes(png(number))
    (tmp_path / "birds" / "Eule" / "Thumbs.db").write_bytes(b"no picture")
    (tmp_path / "new" / "inner" / "one.png").write_bytes(png(3))
    page, names = visit.page, visit.page.get_by_label("Name of the class")
    visit.drop("#teach .hint", tmp_path / "empty")
    expect(page.locator("#teach-problem")).to_have_text("There are no pictures in it.")
    visit.drop("#teach .hint", tmp_path / "new" / "inner" / "one.png")
    expect(page.locator("#teach-problem")).to_contain_text("Drop pictures on a class")
    visit.drop("#teach .hint", tmp_path / "birds")  # the folders in it are the classes
    expect(names.nth(0)).to_have_value("barn owl")
    expect(names.nth(1)).to_have_value("Eule")
    visit.has(0, 2)
    visit.has(1, 1)
    page.get_by_role("button", name="Add a class").click()
    visit.drop(".card >> nth=2", tmp_path / "new")  # a folder for one class, which takes its name
    expect(names.nth(2)).to_have_value("new")
    visit.drop(".card >> nth=0", tmp_path / "new")  # but not if it has one already
    visit.has(0, 3)
    expect(names.nth(0)).to_have_value("barn owl")
    visit.learn()
    visit.drop("#ask .drop", tmp_path / "birds")
    expect(page.locator("#answers > li")).to_have_count(3)
    expect(page.locator("#answers .file").last).to_have_text("birds/barn owl/1.png")
    for problem in page.locator(".card .problem, #teach-problem, #ask-problem").all():
        expect(problem).to_have_text("")


def test_a_class_without_room_says_how_many_pictures_were_left_out(browser, tmp_path):
    with served(browser, tmp_path, limits={"pictures_per_class": 2}) as visit:
        visit.teach(0, *(file(f"{i}.png", png(i)) for i in range(6)))
        expect(visit.card(0).get_by_role("alert")).to_have_text(
            "2.png: A class can have 2 pictures; remove one first.\n"
            "Left out: 3 more. “pathaware learn” takes any number."
        )


def test_photographs_that_are_too_large_are_scaled_down_in_the_browser(browser, tmp_path):
    limits = {"pixels": 5_000_000, "upload_bytes": 500_000}
    many = encoded(Image.new("RGB", (3000, 2000), "red"), "JPEG")  # of pixels
    noise = np.random.default_rng(0).integers(0, 255, (500, 600, 3), np.uint8)
    large = encoded(Image.fromarray(noise), "PNG")
    assert len(many) < limits["upload_bytes"] < len(large)
    with served(browser, tmp_path, "photos", limits=limits) as visit:
        for place, content in enumerate((many, large)):
            visit.teach(place, file("photo", content))
            visit.has(place, 1)
        visit.learn()
        visit.ask(file("many.jpg", many))
        expect(visit.page.locator("#answers strong")).to_have_text("Class 1")


def test_drawings_teach_and_ask(visit):
    page = visit.page
    for place, stroke in ((0, ((60, 60), (200, 200))), (1, ((60, 140), (200, 140)))):
        visit.card(place).get_by_role("button", name="Draw").click()
        page.get_by_role("button", name="Add this drawing").click()
        expect(page.locator("#drawing-status")).to_have_text("Draw something first.")
        draw(page, "#class-pad", *stroke)
        page.get_by_role("button", name="Add this drawing").click()
        expect(page.locator("#drawing-status")).to_contain_text("Added")
        page.get_by_role("button", name="Done").click()
        visit.has(place, 1)
    visit.learn()
    draw(page, "#ask-pad", (40, 100), (160, 100))  # smaller, and not where it was
    page.get_by_role("button", name="Ask about the drawing").click()
    expect(page.locator("#answers strong")).to_have_text("Class 2")


def draw(page, pad: str, start: tuple[int, int], end: tuple[int, int]) -> None:
    page.locator(pad).hover(position={"x": start[0], "y": start[1]})  # waits until the pad has stopped moving
    box = page.locator(pad).bounding_box()
    page.mouse.down()
    page.mouse.move(box["x"] + end[0], box["y"] + end[1], steps=5)
    page.mouse.up()


def test_files_that_cannot_be_used_are_named_where_they_were_dropped(visit, client, tmp_path):
    files = {"notes.txt": b"not a picture", "big.png": bytes(10 * 2**20 + 1), "good.png": png(1)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    visit.teach(0, *(tmp_path / name for name in files))
    problem = visit.card(0).get_by_role("alert")
    expect(problem).to_contain_text("notes.txt: Not a picture in a known format")
    expect(problem).to_contain_text("big.png: The file is larger than allowed")
    visit.has(0, 1)  # the good one was taken
    assert client.get(visit.session).json()["classes"] == {"Class 1": 1}


def test_a_question_is_answered_as_soon_as_there_are_two_classes(visit):
    page = visit.page
    visit.ask(file("new.png", png(2)))
    visit.teach(0, file("one.png", png(1)))
    expect(page.locator(".thumbs li")).to_have_count(1)
    visit.settle()
    expect(page.locator("#waiting")).to_contain_text("Two classes with pictures are needed")
    expect(page.locator("#answers > li.stale")).to_have_count(1)
    visit.teach(1, file("two.png", png(2)))
    expect(page.locator("#answers > li:not(.stale) strong")).to_have_text("Class 2")
    expect(page.locator("#waiting")).to_be_empty()


def test_two_classes_cannot_share_a_name(taught):
    name = taught.page.get_by_label("Name of the class").nth(1)
    for wrong in ("Class 1", "  "):
        name.fill(wrong)
        name.blur()
        expect(taught.card(1).get_by_role("alert")).not_to_be_empty()
        expect(name).to_have_value("Class 2")


def test_a_forgotten_session_is_taught_again_by_itself(taught, client):
    taught.learn()
    client.delete(taught.session).raise_for_status()
    taught.ask(file("new.png", png(2)))
    taught.answered(1)
    assert client.get(taught.session).json() == {"classes": {"Class 1": 2, "Class 2": 1}, "adapted": True}


def test_a_server_that_is_gone_is_said_to_be_gone(browser, tmp_path):
    with serving(tmp_path) as server:
        visit = Visit(browser, server.address)
        server.process.terminate()
        server.process.wait(20)
        visit.teach(0, file("one.png", png(1)))
        expect(visit.card(0).get_by_role("alert")).to_contain_text("The server does not answer")
        visit.context.close()


def test_leaving_the_page_ends_its_session(browser, server, client):
    for leave in (lambda page: page.goto("about:blank"), lambda page: page.close(run_before_unload=True)):
        visit = Visit(browser, server.address)
        assert client.get(session_of(visit)).status_code == 200
        leave(visit.page)
        end = time.monotonic() + 5
        while client.get(visit.session).status_code != 404:
            assert time.monotonic() < end, "the session is still there"
            time.sleep(0.05)
        visit.context.close()


def session_of(visit: Visit) -> str:
    visit.teach(0, file("one.png", png(1)))  # its name shows with its first picture
    expect(visit.page.locator(".thumbs li")).to_have_count(1)
    return visit.session


OUTLINED = "e => [e, e.closest('.drop')].some(x => x && getComputedStyle(x).outlineStyle !== 'none')"


def test_everything_can_be_done_with_keys_alone(visit):
    page = visit.page
    page.on("filechooser", lambda _: None)  # from now on the browser leaves choosing to us

    def tab_to(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            focused = page.locator(":focus")
            if focused.count() and name in (focused.get_attribute("aria-label") or focused.inner_text()):
                assert focused.evaluate(OUTLINED), f"{name}: focus cannot be seen"
                return
        raise AssertionError(f"{name} cannot be reached")

    for label, seed in (("Class 1", 1), ("Class 2", 2)):
        tab_to(f"Add pictures to {label}")
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Space")
        chooser.value.set_files([file("one.png", png(seed))])
        expect(page.locator(".thumbs li")).to_have_count(seed)
    tab_to("Draw a picture for Class 2")
    page.keyboard.press("Enter")
    expect(page.locator("#drawing")).to_be_visible()
    stroke(page, "#class-pad")
    tab_to("Add this drawing")
    page.keyboard.press("Enter")
    expect(page.locator(".thumbs li")).to_have_count(3)
    page.keyboard.press("Escape")
    expect(page.locator("#drawing")).to_be_hidden()
    tab_to("Remove Drawing")
    page.keyboard.press("Enter")
    expect(page.locator(".thumbs li")).to_have_count(2)
    visit.learn()
    tab_to("Drawing pad for a question")
    stroke(page, "#ask-pad")
    tab_to("Ask about the drawing")
    page.keyboard.press("Space")
    visit.answered(1)
    tab_to("Class 2\n")
    page.keyboard.press("Enter")
    expect(page.locator("#answers > li.settled strong")).to_have_text("Class 2")


def stroke(page, pad: str) -> None:
    page.locator(pad).focus()
    for key in ("Space", *["ArrowRight"] * 4, *["ArrowDown"] * 4, "Space"):
        page.keyboard.press(key)


def test_every_control_has_a_name_and_headings_are_in_order(taught):
    page = taught.page
    taught.learn()
    taught.ask(file("new.png", png(2)))
    expect(page.locator("#answers > li")).to_have_count(1)
    taught.card(0).get_by_role("button", name="Draw").click()  # with the dialog, everything is there
    tools = taught.context.new_cdp_session(page)
    nodes = tools.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "image", "img", "list", "table", "dialog", "group", "Canvas"}
    found = [n for n in nodes if not n["ignored"] and n["role"]["value"] in roles]
    page.keyboard.press("Escape")
    page.locator("#drawing").wait_for(state="hidden")
    found += [n for n in tools.send("Accessibility.getFullAXTree")["nodes"] if _focusable(n)]
    assert len(found) > 15
    unnamed = [n["role"]["value"] for n in found if not n.get("name", {}).get("value", "").strip()]
    assert [role for role in unnamed if role not in ("list", "RootWebArea")] == []
    levels = [int(h.evaluate("e => e.tagName[1]")) for h in page.locator("h1, h2, h3").all()]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.locator("html").get_attribute("lang") == "en"


def _focusable(node) -> bool:
    return any(p["name"] == "focusable" and p["value"]["value"] for p in node.get("properties", []))


CONTRAST = """() => {
    const channels = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (c) => {
        const [r, g, b] = c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (e) => {
        for (; e; e = e.parentElement) {
            const c = channels(getComputedStyle(e).backgroundColor);
            if (c.length === 3 || c[3] === 1) return c.slice(0, 3);
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const e of document.querySelectorAll("body *")) {
        const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        if (!own || !e.checkVisibility()) continue;
        const style = getComputedStyle(e);
        const ink = channels(e instanceof SVGElement ? style.fill : style.color).slice(0, 3);
        const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x);
        found.push([`${e.tagName} ${e.textContent.trim().slice(0, 30)}`, (a + 0.05) / (b + 0.05)]);
    }
    return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_its_ground(open_page, scheme):
    visit = open_page(color_scheme=scheme)
    visit.teach(0, file("one.png", png(1)), file("notes.txt", b"no"))
    visit.teach(1, file("two.png", png(2)))
    expect(visit.page.locator(".thumbs li")).to_have_count(2)
    visit.learn()
    visit.ask(file("new.png", png(2)))
    expect(visit.page.locator("#answers > li")).to_have_count(1)
    found = visit.page.evaluate(CONTRAST)
    assert len(found) > 30
    assert [(text, ratio) for text, ratio in found if ratio < 4.5] == []


def test_on_a_phone_nothing_is_wider_than_the_screen(open_page):
    visit = open_page(viewport={"width": 360, "height": 740}, has_touch=True)
    page = visit.page
    page.get_by_label("Name of the class").nth(0).fill("W" * 64)
    page.get_by_role("button", name="Try it with examples").click()
    expect(page.locator(".thumbs li")).to_have_count(6)
    visit.learn()
    page.get_by_role("button", name="Ask about the examples").click()
    expect(page.locator("#answers > li")).to_have_count(6)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_steps_come_one_by_one_unless_nothing_should_move(open_page):
    visit = open_page(reduced_motion="no-preference")
    page = visit.page
    for place in (0, 1):
        visit.teach(place, file("one.png", png(place)))
    expect(page.locator(".thumbs li")).to_have_count(2)
    expect(page.locator("#step-losses td")).not_to_have_count(0)
    assert page.locator("#step-losses td").count() < 6
    expect(page.locator("#step-losses td")).to_have_count(6)


def test_pictures_that_browsers_cannot_show_have_a_thumbnail_too(visit):
    from PIL import Image

    visit.teach(0, file("scan.tiff", encoded(Image.new("L", (30, 30), 90), "TIFF")))
    expect(visit.page.get_by_role("img", name="scan.tiff")).to_be_visible()


def test_a_model_that_adapts_at_once_shows_no_curve_of_two_points(visit):
    def cut(route):
        response = route.fetch()
        found = response.json()
        route.fulfill(response=response, json={**found, "steps": [found["steps"][0], found["steps"][-1]]})

    visit.page.route("**/adapt", cut)
    for place in (0, 1):
        visit.teach(place, file("picture.png", png(place)))
    visit.learn()
    expect(visit.page.locator("#steps")).to_be_hidden()
    status = visit.page.locator("#learned")
    expect(status).not_to_contain_text("steps")
    expect(status).to_contain_text("on the pictures you gave")
    visit.page.unroute("**/adapt")
    visit.teach(0, file("other.png", png(2)))
    expect(visit.page.locator("#steps")).to_be_visible()


def test_a_model_of_photographs_has_no_drawing_pads(browser, tmp_path):
    with served(browser, tmp_path, "photos", limits={}) as visit:
        for button in visit.page.get_by_role("button").all():
            assert "raw" not in button.inner_text()
        assert visit.page.locator("#examples").is_hidden()
        assert httpx.get(visit.address + "/api/examples").status_code == 404
        for place, colour in enumerate(("red", "blue")):
            visit.teach(place, file("photo.jpg", encoded(Image.new("RGB", (90, 60), colour), "JPEG")))
        expect(visit.page.locator(".thumbs li")).to_have_count(2)
        visit.learn()


def test_a_saved_classifier_can_be_asked_at_once_and_uploads_nothing(browser, tmp_path):
    saved = saved_classifier(tmp_path / "xy-classifier")
    (tmp_path / "served").mkdir()
    with served(browser, tmp_path / "served", model=str(saved)) as visit:
        page = visit.page
        expect(page.locator("#about")).to_contain_text("has learned the classes below")
        expect(page.locator("#about")).to_contain_text(re.compile(r"not learned, [012] of 2 labels"))
        visit.has(0, 1)
        visit.has(1, 2)
        assert not [url for url in visit.asked if "/pictures?" in url]
        expect(page.locator("#undo")).to_be_disabled()  # nothing was changed yet
        visit.ask(file("new one.png", png(4)))
        expect(page.locator("#answers .file")).to_have_text("new one.png")
        visit.card(1).locator(".remove").nth(1).click()  # its pictures are those of the session
        visit.has(1, 1)
        visit.settle()
        assert httpx.get(visit.address + visit.session).json()["classes"] == {"x": 1, "y": 1}


def test_a_saved_classifier_of_many_pictures_can_be_asked_before_all_are_shown(browser, tmp_path):
    """Chromium refuses requests when thousands of them wait, and the page was of no use."""
    saved = saved_classifier(tmp_path / "many-classifier", 40)
    (tmp_path / "served").mkdir()
    with served(browser, tmp_path / "served", model=str(saved)) as visit:
        page, held, hold = visit.page, [], True
        page.route("**/api/saved/*.png", lambda route: held.append(route) if hold else route.continue_())
        page.reload()
        page.locator("#learned", has_text="→").wait_for()
        visit.ask(file("new.png", png(4)))
        visit.answered(1)
        assert 0 < len(held) < 40
        hold = False
        for route in held:
            route.continue_()
        expect(page.locator(".thumbs li")).to_have_count(40)


@pytest.mark.slow
def test_photographs_are_taught_and_told_apart_by_the_model_that_ships(browser, tmp_path):
    photograph_page(browser, tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000
