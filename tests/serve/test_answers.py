"""Unknown pictures, reasons, suspicious labels, suggestions, corrections and undo: the API and the page."""

from __future__ import annotations

from itertools import pairwise

import pytest
from playwright.sync_api import expect

from tests.serve.browsing import Visit, file
from tests.serve.serving import begin, png, teach

WAIT = 30_000
"""Milliseconds for what the server has to compute."""


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


def test_a_kept_picture_is_classified_again_without_sending_it(client, adapted, shapes):
    session, _ = adapted
    answer = client.post(f"{session}/classify?keep=true", content=shapes["fork"][3]).json()
    again = client.post(f"{session}/classify?picture={answer.pop('picture')}").json()
    assert again == answer
    assert client.post(f"{session}/classify?picture=none").status_code == 404


def test_a_person_who_wants_none_of_it_sees_none_of_it(open_page):
    visit = open_page()
    page = visit.page
    expect(page.locator("#more summary")).to_be_visible()
    for hidden in ("#say-unknown", "#say-why", "#suggest", "#check"):
        expect(page.locator(hidden)).to_be_hidden()
    visit.teach(0, file("one.png", png(1)))
    visit.teach(1, file("two.png", png(2)))
    expect(page.locator(".thumbs li")).to_have_count(2)
    visit.ask(file("new.png", png(3)))
    visit.answered(1)
    assert [url for url in visit.asked if "why" in url or "unknown" in url] == []
    expect(page.locator(".why, .label-next, .unknown, .doubtful")).to_have_count(0)


def test_all_of_it_by_keyboard(open_page, shapes):
    visit = open_page()
    page = visit.page
    for place, label in enumerate(("hourglass", "fork")):
        visit.name(place, label)
        given = [file(f"{label}-{i}.png", picture) for i, picture in enumerate(shapes[label][:3])]
        visit.teach(place, *given)
        visit.has(place, 3)
    visit.teach(0, file("wrong.png", shapes["fork"][4]))
    visit.has(0, 4)

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
    visit.has(1, 4)
    press("#undo", "Enter")
    visit.has(0, 4)
    page.get_by_role("button", name="Remove wrong.png from hourglass").press("Enter")
    visit.has(0, 3)

    names = ["fork.png", "lattice-0.png", "lattice-1.png"]
    given = [shapes["fork"][3], *shapes["lattice"][:2]]
    visit.ask(*(file(n, p) for n, p in zip(names, given, strict=True)))
    expect(page.locator("#answers > li:not(.stale)")).to_have_count(3, timeout=WAIT)
    expect(page.locator("#answers strong").last).to_have_text("fork")
    expect(page.locator("#answers strong").first).to_have_text("None of these")
    expect(page.locator("#answers .why .for canvas").first).to_be_visible()
    press("#suggest", "Enter")
    expect(page.locator("#answers .next")).to_have_count(3, timeout=WAIT)
    expect(page.locator("#more-status")).to_contain_text("lattice")
    page.locator("#answers .bar:focus").wait_for()
    page.keyboard.press("1")
    visit.has(0, 4)


@pytest.fixture
def visit(visit, shapes):
    """A page that has learned hourglasses and forks, and answered about two pictures of each."""
    for place, label in enumerate(("hourglass", "fork")):
        visit.name(place, label)
        visit.teach(place, *(file(f"{label} {i}.png", shapes[label][i]) for i in (0, 1)))
        visit.has(place, 2)
    asked = [file(f"{label} {i}.png", shapes[label][i]) for label in ("hourglass", "fork") for i in (2, 3)]
    visit.ask(*asked)
    visit.answered(4)
    return visit


def labels(visit: Visit) -> list[str]:
    visit.settle()
    return visit.page.locator("#answers strong").all_inner_texts()


def answer(visit: Visit, title: str):
    return visit.page.locator("#answers > li").filter(has=visit.page.locator(".file", has_text=title))


def test_every_change_is_learned_at_once_and_answers_follow(visit):
    page = visit.page
    assert labels(visit) == ["fork", "fork", "hourglass", "hourglass"]
    name = page.get_by_label("Name of the class").nth(1)
    name.fill("tines")
    name.blur()
    assert labels(visit) == ["tines", "tines", "hourglass", "hourglass"]
    page.route("**/adapt", lambda route: None)  # no answer comes, so those on screen stay out of date
    page.get_by_role("button", name="Remove fork 1.png from tines").click()
    expect(page.locator("#answers > li.stale")).to_have_count(4)
    page.unroute_all()
    assert page.locator("#adapt-button").count() == 0


def test_the_newest_change_wins(visit, client):
    adapted = len([url for url in visit.asked if url.endswith("/adapt")])
    for key in ("One", "Two", "Three", "Four"):
        visit.name(0, key)
    assert labels(visit)[-1] == "Four"
    assert len([url for url in visit.asked if url.endswith("/adapt")]) - adapted <= 3
    assert client.get(visit.session).json() == {"classes": {"Four": 2, "fork": 2}, "adapted": True}


def test_an_answer_is_set_right_with_one_click_and_teaches(visit, client):
    wrong = answer(visit, "fork 3.png")
    wrong.locator(".bar", has_text="hourglass").click()
    expect(wrong.locator("strong")).to_have_text("hourglass")
    expect(wrong.locator(".bar", has_text="hourglass")).to_have_attribute("aria-pressed", "true")
    visit.settle()
    assert client.get(visit.session).json() == {"classes": {"hourglass": 3, "fork": 2}, "adapted": True}
    wrong.locator(".bar", has_text="fork").click()  # said something else
    visit.settle()
    assert client.get(visit.session).json()["classes"] == {"hourglass": 2, "fork": 3}
    wrong.locator(".bar", has_text="fork").click()  # taken back
    visit.settle()
    assert client.get(visit.session).json()["classes"] == {"hourglass": 2, "fork": 2}
    wrong.get_by_label("Label of fork 3.png").select_option("A new class")
    expect(wrong.locator("strong")).to_have_text("Class 1")
    visit.has(2, 1)


def test_number_keys_sort_one_answer_after_the_other(visit):
    answer(visit, "fork 3.png").locator(".bar").first.focus()
    for key in "2211":
        visit.page.keyboard.press(key)
    expect(visit.page.locator("#answers .settled .said")).to_have_count(4)
    assert labels(visit) == ["fork", "fork", "hourglass", "hourglass"]
    visit.has(0, 4)


def test_answers_above_a_certainty_are_accepted(visit, client):
    page = visit.page
    before = labels(visit)
    page.locator("#certainty").select_option("0.8")
    page.locator("#accept").click()
    sure = page.locator("#answers .said", has_text="Accepted")
    expect(sure).not_to_have_count(0)
    expect(page.locator("#ask-status")).to_contain_text("accepted")
    assert labels(visit) == before
    assert client.get(visit.session).json()["classes"] == {"hourglass": 2, "fork": 2}  # nothing was taught
    page.locator("#undo").click()
    expect(sure).to_have_count(0)


def picture_of(visit: Visit) -> list:
    """What the page shows: classes, their pictures, and answers, in order."""
    visit.settle()
    return visit.page.evaluate(
        """() => {
            const all = (selector, within = document) => [...within.querySelectorAll(selector)];
            const cards = all(".card").map((card) => [
                card.querySelector(".name").value,
                all(".thumbs canvas", card).map((each) => each.ariaLabel)]);
            const answers = all("#answers > li").map((item) => [
                all(".file, strong", item).map((each) => each.textContent), [...item.classList].sort()]);
            return [cards, answers];
        }"""
    )


def test_everything_is_undone_and_done_again_in_place_and_order(visit, client):
    page = visit.page
    name = page.get_by_label("Name of the class").nth(0)
    steps = [
        lambda: (name.fill("sand"), name.blur()),
        lambda: page.get_by_role("button", name="Add a class").click(),
        lambda: visit.card(0).get_by_role("button", name="Remove hourglass 0.png").click(),
        lambda: answer(visit, "fork 3.png").locator(".bar", has_text="sand").click(),
        lambda: page.get_by_role("button", name="Remove hourglass 2.png from the answers").click(),
        lambda: page.get_by_role("button", name="Remove the class fork").click(),
        lambda: page.locator("#clear-answers").click(),
    ]
    seen = [picture_of(visit)]
    for step in steps:
        step()
        seen.append(picture_of(visit))
    assert all(before != after for before, after in pairwise(seen))
    for expected in reversed(seen[:-1]):
        page.locator("h1").click()
        page.keyboard.press("Control+z")
        assert picture_of(visit) == expected
    assert client.get(visit.session).json() == {"classes": {"hourglass": 2, "fork": 2}, "adapted": True}
    expect(page.locator("#teach-status")).to_contain_text("Undone: hourglass renamed to sand")
    for expected in seen[1:]:
        page.locator("#redo").click()
        assert picture_of(visit) == expected
    expect(page.locator("#redo")).to_be_disabled()


def test_something_moves_while_it_computes_unless_nothing_should(browser, server):
    animation = "getComputedStyle(document.querySelector('.progress')).animationName"
    for motion, expected in (("no-preference", "along"), ("reduce", "none")):
        visit = Visit(browser, server.address, reduced_motion=motion)
        visit.page.route("**/adapt", lambda route: None)
        for place in (0, 1):
            visit.teach(place, file("one.png", png(place)))
        expect(visit.page.locator(".thumbs li")).to_have_count(2)
        expect(visit.page.locator("body")).to_have_attribute("data-live", "busy")
        assert visit.page.evaluate(animation) == expected
        visit.page.unroute_all()
        visit.context.close()
