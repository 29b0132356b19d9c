"""What is taught outlives the page: in the browser, in files, and on the machine that serves."""

from __future__ import annotations

import re
import zipfile
from contextlib import suppress

import pytest
from playwright.sync_api import Error, expect

from pathaware.cli import main
from pathaware.inference.trained_model import TrainedModel
from tests.serve.browsing import Visit, file, served
from tests.serve.serving import begin, saved_classifier, serving, teach

ROOM = {"width": 1160, "height": 900}


def fill(visit: Visit, shapes: dict[str, list[bytes]]) -> None:
    """Teach two classes, one with a name that no folder can have, and ask about one picture of each."""
    for place, (label, shape) in enumerate((("sand/glass", "hourglass"), ("fork", "fork"))):
        visit.name(place, label)
        visit.teach(place, *(file(f"{i}.png", picture) for i, picture in enumerate(shapes[shape][:2])))
        visit.has(place, 2)
    asked = [file(f"new {shape}.png", shapes[shape][3]) for shape in ("hourglass", "fork")]
    visit.ask(*asked)
    visit.answered(2)


@pytest.fixture
def visit(visit, shapes):
    fill(visit, shapes)
    return visit


def shown(page) -> list:
    page.locator("body[data-ready][data-live=idle]").wait_for()
    expect(page.locator("#answers > li:not(.stale)")).to_have_count(2)
    return page.evaluate(
        """() => ["input.name", ".thumbs canvas", "#answers .file", "#answers strong"].map((selector) =>
            [...document.querySelectorAll(selector)].map((e) => e.value ?? e.ariaLabel ?? e.textContent))"""
    )


def test_a_reload_a_crash_and_a_closed_tab_lose_nothing(visit, client):
    page, before = visit.page, shown(visit.page)
    assert before[0] == ["sand/glass", "fork"]
    assert before[3] == ["fork", "sand/glass"]
    old = visit.session
    page.reload()
    assert shown(page) == before
    expect(page.locator("#teach-status")).to_contain_text("Brought back")
    assert visit.session != old
    assert client.get(old).status_code == 404
    assert client.get(visit.session).json()["classes"] == {"sand/glass": 2, "fork": 2}
    with page.expect_event("crash"), suppress(Error):
        page.goto("chrome://crash", timeout=2000)
    other = visit.context.new_page()
    other.goto(visit.address)
    assert shown(other) == before
    other.close(run_before_unload=True)
    third = visit.context.new_page()
    third.goto(visit.address)
    assert shown(third) == before
    fourth = visit.context.new_page()  # while another tab has the work
    fourth.goto(visit.address)
    fourth.locator("body[data-ready]").wait_for()
    expect(fourth.locator(".thumbs li")).to_have_count(0)


def test_a_server_that_starts_again_is_told_everything_again(browser, shapes, tmp_path):
    with serving(tmp_path) as server:
        visit = Visit(browser, server.address)
        fill(visit, shapes)
        before = shown(visit.page)
        port = server.address.rpartition(":")[2]
    visit.name(1, "tines")
    expect(visit.page.locator("#server")).to_contain_text("The server does not answer")
    with serving(tmp_path, "--port", port):
        visit.page.get_by_role("button", name="Try again").click()
        expect(visit.page.locator("#server")).to_be_empty()
        after = shown(visit.page)
        assert after[0] == ["sand/glass", "tines"]
        assert after[1:3] == before[1:3]
        visit.context.close()


def test_what_the_browser_keeps_is_said_and_can_be_deleted(visit):
    page = visit.page
    page.get_by_text("What is kept where").click()
    expect(page.locator("#kept-here")).to_contain_text("This browser keeps your pictures")
    page.get_by_role("button", name="Delete what this browser keeps").click()
    expect(page.locator("#keep-status")).to_contain_text("Deleted")
    counts = page.evaluate(
        """() => new Promise((found) => {
            indexedDB.open("pathaware").onsuccess = async ({ target: { result } }) => found(await Promise.all(
                [...result.objectStoreNames].map((name) => new Promise((count) => {
                    const request = result.transaction(name).objectStore(name).count();
                    request.onsuccess = () => count(request.result);
                }))));
        })"""
    )
    assert counts == [0, 0]
    page.reload()
    page.locator("body[data-ready]").wait_for()
    expect(page.locator(".thumbs li")).to_have_count(0)


def test_leaving_asks_while_something_is_not_saved(visit):
    page, asked = visit.page, []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    page.locator("h1").click()
    page.close(run_before_unload=True)
    page.wait_for_timeout(500)
    assert asked == ["beforeunload"]
    with page.expect_download():
        page.get_by_role("button", name="Save the classifier").click()
    expect(page.locator("#keep-status")).to_contain_text("Saved")
    page.close(run_before_unload=True)
    assert asked == ["beforeunload"]


def test_the_classifier_is_saved_used_and_opened_again(visit, open_page, tmp_path, capsys, shapes):
    with visit.page.expect_download() as started:
        visit.page.get_by_role("button", name="Save the classifier").click()
    started.value.save_as(tmp_path / "classifier.zip")
    with zipfile.ZipFile(tmp_path / "classifier.zip") as packed:
        assert packed.testzip() is None
        packed.extractall(tmp_path)
    folder = tmp_path / "classifier"
    saved = TrainedModel.open(folder, "cpu").support
    assert saved.classes == ("sand/glass", "fork")
    assert saved.labels.tolist() == [0, 0, 1, 1]
    assert (folder / "pictures" / "sand_glass" / "1.png").read_bytes() == shapes["hourglass"][1]
    (tmp_path / "new.png").write_bytes(shapes["fork"][3])
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["predict", str(folder), "--images", str(tmp_path / "new.png"), "--format", "json"])
    assert '"fork"' in capsys.readouterr().out
    other = open_page()
    other.page.set_input_files("#open-file", tmp_path / "classifier.zip")
    other.learn()
    assert [each.input_value() for each in other.page.locator("input.name").all()] == ["sand/glass", "fork"]
    assert shown(visit.page)[1] == [
        c.get_attribute("aria-label") for c in other.page.locator(".thumbs canvas").all()
    ]
    other.page.locator("#undo").click()
    expect(other.page.locator(".thumbs li")).to_have_count(0)
    other.page.set_input_files("#open-file", [file("x.zip", b"none")])
    expect(other.page.locator("#keep-problem")).to_have_text("This is not a classifier that was saved here.")


def test_the_pictures_are_saved_sorted_into_folders(visit, shapes):
    page = visit.page
    item = page.locator("#answers > li").first
    item.locator(".bar", has_text="sand/glass").click()  # it was a fork
    visit.ask(file("new fork.png", shapes["fork"][2]))
    visit.answered(3)
    visit.settle()
    with page.expect_download() as started:
        page.get_by_role("button", name="Save the pictures, sorted").click()
    with zipfile.ZipFile(started.value.path()) as packed:
        assert packed.testzip() is None
        names = packed.namelist()
        assert packed.read("sand_glass/new fork.png") == shapes["fork"][3]
    assert names[:2] == ["sand_glass/new hourglass.png", "sand_glass/new fork.png"]
    assert re.fullmatch(r"(fork/new fork|sand_glass/new fork \(2\))\.png", names[2])


def test_a_classifier_is_saved_on_the_machine_that_serves(browser, shapes, tmp_path):
    with served(browser, tmp_path, "--save-to", str(tmp_path / "saved")) as visit:
        fill(visit, shapes)
        visit.page.get_by_role("button", name="Save on the server").click()
        expect(visit.page.locator("#keep-status")).to_contain_text(str(tmp_path / "saved"))
        (folder,) = (tmp_path / "saved").iterdir()
        assert TrainedModel.open(folder, "cpu").support.classes == ("sand/glass", "fork")


def test_a_server_that_may_not_save_says_so_and_leaves_nothing(client, server, shapes):
    session = begin(client)
    assert client.post(f"{session}/save").status_code == 409  # nothing was learned
    for label in ("fork", "hourglass"):
        teach(client, session, label, shapes[label][0])
    client.post(f"{session}/adapt").raise_for_status()
    assert "--save-to" in client.post(f"{session}/save?there=true").json()["error"]
    assert client.post(f"{session}/save").headers["content-type"] == "application/zip"
    assert server.written() == []


def test_a_changed_classifier_comes_back_as_it_was_changed(browser, tmp_path):
    saved = saved_classifier(tmp_path / "xy-classifier")
    (tmp_path / "served").mkdir()
    phone = {"width": 390, "height": 800}
    with served(browser, tmp_path / "served", model=str(saved), viewport=phone) as visit:
        page = visit.page
        tops = [page.locator(each).bounding_box()["y"] for each in ("#ask", "#teach")]
        assert tops[0] < tops[1]  # on a phone, questions come first
        page.set_viewport_size(ROOM)
        expect(page.locator("main > :first-child")).to_have_attribute("id", "teach")
        visit.card(1).locator(".remove").nth(1).click()
        visit.has(1, 1)
        visit.settle()
        page.reload()
        visit.has(1, 1)
        visit.settle()
        assert not [url for url in visit.asked if "/pictures?" in url]  # the server has its pictures
        page.get_by_role("button", name="Start afresh").click()
        visit.has(1, 2)
