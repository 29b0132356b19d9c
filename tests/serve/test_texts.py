"""The page's words: every text exists in every language and is used, and no word of the API is among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from pathaware import serve
from tests.serve.browsing import file
from tests.serve.serving import png

PAGE = Path(serve.__file__).parent / "page"
LANGUAGES = sorted(path.stem for path in (PAGE / "texts").glob("*.js"))
INDIRECT = ("for", "against", "loss", "accuracy", "undone", "redone")
"""Texts whose keys are values of variables."""
NOT_FOR_PEOPLE = re.compile(
    r"\b(adapt\w*|classify|session|support set|query|inner step|token|image|upload\w*)\b", re.IGNORECASE
)


def texts(language: str) -> dict[str, str]:
    source = (PAGE / "texts" / f"{language}.js").read_text(encoding="utf-8")
    entries = re.split(r"^  (?=\w+:)", source.partition("export default {")[2], flags=re.MULTILINE)[1:]
    return {entry.partition(":")[0]: entry.partition(":")[2] for entry in entries}


def test_there_are_two_languages():
    assert LANGUAGES == ["de", "en"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_that_is_used_exists_and_no_other(language):
    sources = [path.read_text(encoding="utf-8") for path in PAGE.glob("*.*")]
    used = "".join(sources)
    keys = set(re.findall(r'data-(?:text|label)="(\w+)"', used))
    for call in re.findall(r"\bt\(([^()]*)", used):  # also of t(one ? "this" : "that")
        keys |= set(re.findall(r'"(\w+)"', call))
    keys |= set(re.findall(r'"(camera[A-Z]\w+)"', used)) | {"language", *INDIRECT}
    statuses = re.search(r"SAID = \[(.*?)\]", (PAGE / "session.js").read_text())[1].split(", ")
    keys |= {f"error{status}" for status in statuses}
    assert set(texts(language)) == keys


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_take_the_same_values_in_every_language(language):
    values = {key: re.match(r"\s*(\([\w, ]*\)) =>", text) for key, text in texts(language).items()}
    english = {key: re.match(r"\s*(\([\w, ]*\)) =>", text) for key, text in texts("en").items()}
    assert {k: v and v[1] for k, v in values.items()} == {k: v and v[1] for k, v in english.items()}


def test_sentences_begin_in_upper_case_and_name_nothing_of_the_api():
    for key, text in texts("en").items():
        words = re.sub(r"“pathaware[^”]*”|\$\{[^}]*\}", "", text)
        assert not NOT_FOR_PEOPLE.search(words), key
        first = re.search(r"[\"`](.)", words)
        parts = {
            "grey",
            "colour",
            "toAskAbout",
            "chooseFiles",
            "orChooseFiles",
            "byMistake",
            "ofThoseThatFit",
        }
        assert key in parts or not first or not first[1].islower(), key


def test_the_page_speaks_the_language_of_the_browser_or_the_one_that_was_chosen(open_page):
    visit = open_page(locale="de-AT")
    page = visit.page
    expect(page.locator("h1")).to_have_text("Einem Modell eigene Klassen beibringen")
    assert page.locator("html").get_attribute("lang") == "de"
    visit.teach(0, file("eins.png", png(1)), file("notiz.txt", b"kein Bild"))
    expect(visit.card(0).get_by_role("alert")).to_contain_text(
        "notiz.txt: Kein Bild in einem bekannten Format"
    )
    page.locator("#language").select_option("English")
    expect(page.locator("h1")).to_have_text("Teach a model your own classes")
    expect(page.locator(".thumbs li")).to_have_count(1)
    page.reload()
    expect(page.locator("h1")).to_have_text("Teach a model your own classes")
