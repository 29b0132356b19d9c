"""The camera of a browser that has a fake one, and of browsers that refuse theirs."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Page, expect

from tests.serve.browsing import browsing, file
from tests.serve.serving import png

FAKE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@pytest.fixture(scope="module")
def browser():
    with browsing(*FAKE) as opened:
        yield opened


@pytest.fixture
def visit(open_page):
    return open_page(permissions=["camera"])


def test_holding_the_button_records_several_pictures_into_a_class(visit, client):
    page = visit.page
    visit.card(0).get_by_role("button", name="Camera").click()
    hold = page.get_by_role("button", name="Hold to record")
    expect(hold).to_be_enabled()
    hold.hover()
    page.mouse.down()
    visit.card(0).locator(".thumbs li").nth(2).wait_for(state="attached")
    page.mouse.up()
    expect(page.locator("#record-status")).to_contain_text("pictures recorded")
    page.wait_for_timeout(600)
    recorded = visit.card(0).locator(".thumbs li").count()
    page.wait_for_timeout(600)
    assert visit.card(0).locator(".thumbs li").count() == recorded  # nothing after letting go
    hold.focus()
    page.keyboard.down("Space")
    expect(visit.card(0).locator(".thumbs li")).not_to_have_count(recorded)
    page.keyboard.up("Space")
    page.keyboard.press("Escape")
    goes_off(page, "#record-video")
    visit.settle()
    assert client.get(visit.session).json()["classes"]["Class 1"] > recorded
    page.locator("#undo").click()  # what was recorded at once is undone at once
    visit.has(0, recorded)


def test_the_camera_is_answered_about_and_teaches(visit):
    page = visit.page
    page.get_by_role("button", name="Ask the camera").click()
    expect(page.locator("#watch-label")).to_contain_text("Two classes with pictures are needed")
    for place in (0, 1):
        visit.teach(place, file("one.png", png(place)))
    expect(page.locator("#watch-bars .bar")).to_have_count(2)
    count = "Number(document.querySelector('#watching').dataset.answers)"
    before, began = page.evaluate(count), time.monotonic()
    page.wait_for_timeout(3000)
    rate = (page.evaluate(count) - before) / (time.monotonic() - began)
    print(f"{rate:.1f} answers per second")
    assert rate > 1  # 5 and more on an idle machine
    page.locator("#watch-bars .bar").nth(1).click()
    visit.has(1, 2)
    page.get_by_role("button", name="Stop the camera").click()
    expect(page.locator("#watching")).to_be_hidden()
    goes_off(page, "#watch-video")


def goes_off(page: Page, video: str) -> None:
    """Wait until the camera of a video is released, which it is just after its dialog closes."""
    end = time.monotonic() + 10
    while page.evaluate("video => document.querySelector(video).srcObject", video) is not None:
        assert time.monotonic() < end
        page.wait_for_timeout(20)


def fails(name: str) -> str:
    return f"navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('', '{name}'))"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("Object.defineProperty(navigator, 'mediaDevices', { value: undefined })", "localhost"),
        (fails("NotAllowedError"), "has not allowed"),
        (fails("NotFoundError"), "no camera"),
    ],
    ids=["no HTTPS", "not allowed", "no camera"],
)
def test_a_browser_that_refuses_its_camera_is_explained(visit, change, said):
    page = visit.page
    page.evaluate(f"() => {{ {change} }}")
    visit.card(0).get_by_role("button", name="Camera").click()
    expect(page.locator("#record-problem")).to_contain_text(said)
    expect(page.locator("#record-hold")).to_be_disabled()
    page.get_by_role("button", name="Done").last.click()
    page.get_by_role("button", name="Ask the camera").click()
    expect(page.locator("#watch-problem")).to_contain_text(said)
    expect(page.locator("#watching")).to_be_hidden()
