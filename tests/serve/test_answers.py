"""Unknown pictures, reasons, suspicious labels, suggestions, corrections and undo: the API and the page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.serve.browsing import Visit, browsing, file
from tests.serve.serving import CHARACTERS, begin, drawings, png, teach

WAIT = 30_000
"""Milliseconds for what the server has to compute."""


@pytest.fixture(scope="module")
def shapes() -> dict[str, list[bytes]]:
    return {name: drawings(name, 5) for name in CHARACTERS}


@pytest.fixture
def adapted(client, shapes) -> tuple[str, dict[str, str]]:
    """A session that has learned hourglasses and forks, and the names of its pictures by their ids."""
    session, names = begin(client), {}
    for label in ("hourglass", "fork"):
        for i, picture in enumerate(shapes[label][:3]):
            names[teach(client, session, label, picture)] = f"{label} {i}"
    client.post(f"{session}/adapt").raise_for_status()
    return session, names


def test_what_is_not_asked_for_is_not_answered(client, adapted, shapes):
    session, _ = adapted
    answer = client.post(f"{session}/classify", content=shapes["fork"][3]).json()
    assert set(answer) == {"label", "probabilities", "warning"}
    assert (answer["label"], answer["warning"]) == ("fork", None)


def test_a_foreign_picture_is_unknown_and_a_known_one_is_not(client, adapted, shapes):
    session, _ = adapted
    ask = f"{session}/classify?unknown=0.05"
    assert client.post(ask, content=shapes["fork"][3]).json()["unknown"] is False
    assert client.post(ask, content=shapes["lattice"][0]).json()["unknown"] is True
    refused = client.post(f"{session}/classify?unknown=2", content=shapes["fork"][3])
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("?unknown=: 2 is not allowed; must be 0.005 to 0.5")
    assert client.post(f"{session}/classify?unknown=x", content=png(1)).status_code == 422


def test_reasons_name_pictures_of_the_session(client, adapted, shapes):
    session, names = adapted
    answer = client.post(f"{session}/classify?why=true", content=shapes["fork"][3]).json()
    assert answer["for"]
    for side, sign in (("for", 1), ("against", -1)):
        assert all(each["picture"] in names and sign * each["influence"] > 0 for each in answer[side])


def test_a_wrong_label_is_found_corrected_and_the_correction_undone(client, adapted, shapes):
    session, _ = adapted
    wrong = teach(client, session, "hourglass", shapes["fork"][4])
    found = client.post(f"{session}/check").json()["suspicious"]
    assert (found[0]["picture"], found[0]["likelier"]) == (wrong, "fork")
    assert client.post(f"{session}/pictures/{wrong}?label=fork").json() == {"picture": wrong, "label": "fork"}
    assert client.get(session).json()["classes"] == {"hourglass": 3, "fork": 4}
    after = client.post(f"{session}/undo").json()
    assert {"picture": wrong, "label": "hourglass"} in after["pictures"]
    assert client.get(session).json() == {"classes": {"hourglass": 4, "fork": 3}, "adapted": False}


def test_edits_and_undo_give_the_answers_of_a_fresh_session_to_the_last_digit(client, adapted, shapes):
    session, _ = adapted
    expected = client.post(f"{session}/classify", content=shapes["lattice"][0]).json()
    extra = teach(client, session, "fork", png(3))
    client.delete(f"{session}/pictures/{extra}")
    client.post(f"{session}/labels/fork?to=tines")
    client.delete(f"{session}/labels/hourglass")
    for _ in range(4):
        client.post(f"{session}/undo").raise_for_status()
    client.post(f"{session}/adapt").raise_for_status()
    assert client.post(f"{session}/classify", content=shapes["lattice"][0]).json() == expected


def test_there_is_an_end_to_undoing(client):
    session = begin(client)
    assert client.post(f"{session}/undo").status_code == 409
    for i in range(25):
        teach(client, session, "a", png(i))
    undone = [client.post(f"{session}/undo").status_code for _ in range(21)]
    assert undone == [200] * 20 + [409]
    assert client.get(session).json()["classes"] == {"a": 5}


def test_kept_pictures_are_suggested(client, adapted, shapes):
    session, _ = adapted
    assert client.post(f"{session}/suggest").status_code == 409
    kept = [
        client.post(f"{session}/classify?keep=true", content=picture).json()["picture"]
        for picture in (*shapes["fork"][3:], *shapes["lattice"][:3])
    ]
    chosen = client.post(f"{session}/suggest?count=2").json()["pictures"]
    assert len(chosen) == 2
    assert chosen[0] in kept[2:]  # the class without a label
    assert client.post(f"{session}/suggest?count=0").status_code == 422


@pytest.fixture(scope="module")
def browser():
    with browsing() as opened:
        yield opened


def test_a_person_who_wants_none_of_it_sees_none_of_it(browser, server):
    visit = Visit(browser, server.address)
    page = visit.page
    expect(page.locator("#more summary")).to_be_visible()
    for hidden in ("#say-unknown", "#say-why", "#suggest", "#check", "#undo"):
        expect(page.locator(hidden)).to_be_hidden()
    visit.teach(0, file("one.png", png(1)))
    visit.teach(1, file("two.png", png(2)))
    expect(page.locator(".thumbs li")).to_have_count(2)
    visit.adapt()
    page.set_input_files("#ask-files", [file("new.png", png(3))])
    expect(page.locator("#answers li")).to_have_count(1)
    assert [url for url in visit.asked if "classify" in url and "?" in url] == []
    expect(page.locator(".why, .label-next, .unknown, .doubtful")).to_have_count(0)
    visit.check()
    visit.context.close()


def test_all_of_it_by_keyboard(browser, server, shapes):
    visit = Visit(browser, server.address)
    page = visit.page
    for place, label in enumerate(("hourglass", "fork")):
        page.get_by_label("Name of the class").nth(place).fill(label)
        page.get_by_label("Name of the class").nth(place).blur()
        given = [file(f"{label}-{i}.png", picture) for i, picture in enumerate(shapes[label][:3])]
        visit.teach(place, *given)
        expect(visit.card(place).locator(".thumbs li")).to_have_count(3)
    visit.teach(0, file("wrong.png", shapes["fork"][4]))
    expect(visit.card(0).locator(".thumbs li")).to_have_count(4)

    def press(selector: str, key: str) -> None:
        page.focus(selector)
        page.keyboard.press(key)

    press("#more summary", "Enter")
    press("#say-unknown", "Space")
    press("#say-why", "Space")
    press("#check", "Enter")
    expect(page.locator("#more-status")).to_contain_text("wrong.png of hourglass", timeout=WAIT)
    page.get_by_label("Label of wrong.png").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(visit.card(1).locator(".thumbs li")).to_have_count(4)
    press("#undo", "Enter")
    expect(visit.card(0).locator(".thumbs li")).to_have_count(4)
    page.get_by_role("button", name="Remove wrong.png from hourglass").press("Enter")
    expect(visit.card(0).locator(".thumbs li")).to_have_count(3)

    press("#adapt-button", "Enter")
    page.locator("#adapt-status", has_text="→").wait_for()
    names = ["fork.png", "lattice-0.png", "lattice-1.png"]
    given = [shapes["fork"][3], *shapes["lattice"][:2]]
    page.set_input_files("#ask-files", [file(n, p) for n, p in zip(names, given, strict=True)])
    expect(page.locator("#answers li")).to_have_count(3, timeout=WAIT)
    expect(page.locator("#answers strong").last).to_have_text("fork")
    expect(page.locator("#answers strong").first).to_have_text("none of these")
    expect(page.locator("#answers .why .for canvas").first).to_be_visible()
    press("#suggest", "Enter")
    expect(page.locator("#answers .next")).to_have_count(3, timeout=WAIT)
    expect(page.locator("#more-status")).to_contain_text("lattice")
    assert page.evaluate("document.activeElement.tagName") == "SELECT"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(visit.card(0).locator(".thumbs li")).to_have_count(4)
    visit.check()
    visit.context.close()
