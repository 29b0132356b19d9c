"""The site builds without warnings, is complete, and asks no other machine for anything."""

from __future__ import annotations

import doctest
import functools
import http.server
import inspect
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest
from filelock import FileLock
from playwright.sync_api import expect
from tools import docstring_examples, unicode_math
from tools.unicode_math import to_tex

from pathaware.methods import METHODS
from pathaware_research.pages import method_pages
from tests.serve.browsing import browsing

ROOT = Path(__file__).parents[1]
PUBLIC = ("", ".core", ".data", ".inference", ".methods", ".models", ".online", ".report", ".training")
DIRECTIVES = [
    name
    for page in sorted((ROOT / "docs/api").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
]


def resolve(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


class Reader(HTMLParser):
    """Collects the anchors of a page, its links, and what a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(given["href"])
        elif tag in ("img", "script", "iframe", "source") and "src" in given:
            self.loads.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory, worker_id) -> Path:
    """The built site; a warning fails the build. The processes of a test run share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "site"
    with FileLock(f"{folder}.lock"):
        if not (folder / "sitemap.xml").exists():
            build(folder)
    return folder


def build(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
    )
    if done.returncode or "WARNING" in done.stderr:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.fail(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def pages(site) -> dict[str, Reader]:
    """Every page by its path in the site."""
    return {
        path.relative_to(site).as_posix(): Reader(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
        if path.name != "404.html"
    }


def test_every_public_name_is_in_the_api_pages():
    documented = [resolve(name) for name in DIRECTIVES]
    for room in PUBLIC:
        module = import_module(f"pathaware{room}")
        missing = [
            name for name in module.__all__ if not any(getattr(module, name) is each for each in documented)
        ]
        assert not missing, f"{module.__name__}: add {missing} to a page of docs/api"


@pytest.mark.parametrize("name", DIRECTIVES)
def test_what_the_api_pages_name_is_exported(name):
    """Where a package has a module of the same name, a function is found in the module."""
    package, _, own = name.rpartition(".")
    assert package.endswith(f".{own}") or own in import_module(package).__all__


@pytest.mark.parametrize("name", DIRECTIVES)
def test_what_the_api_pages_name_exists_and_is_described(name):
    found = resolve(name)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert inspect.getdoc(found)


def test_the_api_pages_have_an_anchor_for_every_name(pages):
    anchors = set().union(*(page.anchors for name, page in pages.items() if name.startswith("api/")))
    assert anchors >= set(DIRECTIVES)


def test_every_page_is_in_the_navigation(pages):
    """The strict build warns about omitted pages; here the home page leads to every page."""
    linked = {urllib.parse.urlsplit(link).path for link in pages["index.html"].links}
    assert linked >= set(pages) - {"index.html"}


def test_links_and_anchors_lead_somewhere(site, pages):
    for name, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme:
                continue
            target = (site / name).parent / urllib.parse.unquote(parts.path) if parts.path else site / name
            assert target.exists(), f"{name} links to {link}"
            if parts.fragment and target.suffix == ".html":
                found = pages[target.resolve().relative_to(site.resolve()).as_posix()]
                anchor = urllib.parse.unquote(parts.fragment)
                assert anchor in found.anchors | {"__skip"}, f"{name} links to {link}"


def test_no_page_loads_anything_from_elsewhere(pages):
    for name, page in pages.items():
        foreign = [each for each in page.loads if urllib.parse.urlsplit(each).netloc]
        assert not foreign, f"{name} loads {foreign}"


def test_nothing_is_left_to_translate(site):
    """No placeholder or TeX remains on a page."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "KEPT" not in text, path
        if path.parent.name == "methods":
            assert "<math" in text, path
            assert not re.search(
                r"\\(theta|alpha|text|operatorname)", re.sub(r"<annotation.*?>", "", text)
            ), path


def test_functions_without_brackets_stand_apart(site):
    page = (site / "methods/proto-pamela.html").read_text(encoding="utf-8")
    assert re.search(r"<mi>b</mi><mspace [^>]*><mi>log</mi><mspace [^>]*><mi>s</mi>", page)


def test_names_and_numbers_in_tables_are_not_wrapped(site):
    methods = (site / "methods.html").read_text(encoding="utf-8")
    assert re.search(r"<td class=short><a [^>]*><code>meta-curvature</code></a></td>", methods)
    assert not re.search(r"<td class=short>MAML with a penalty", methods)
    concepts = (site / "concepts.html").read_text(encoding="utf-8")
    assert "<code class=dotted>pathaware.<wbr>core.<wbr>meta_gradient</code>" in concepts
    times = (site / "performance.html").read_text(encoding="utf-8")
    assert re.search(r'<td style="text-align: right;" class=short>2e-07</td>', times)


def test_a_browser_without_a_network_shows_mathematics_and_search(site):
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}"
        asked: list[str] = []
        with browsing() as browser:
            page = browser.new_page(viewport={"width": 390, "height": 844})
            page.on("request", lambda request: asked.append(request.url))
            page.goto(f"{home}/methods/pamela.html")
            equation = page.locator("math").nth(1).bounding_box()
            assert equation is not None
            assert equation["width"] > 5 * equation["height"] > 50
            page.goto(f"{home}/internals.html")
            assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
            page.goto(f"{home}/index.html")
            page.get_by_label("Search", exact=True).first.click(force=True)
            words = page.locator("input.md-search__input")
            found = page.locator(".md-search-result__link").first
            # The page searches when a key is released; `fill` presses none.
            words.press_sequentially("preconditioner")
            expect(found).to_be_visible(timeout=60_000)
        server.shutdown()
    assert asked
    assert not [address for address in asked if not address.startswith((home, "data:", "blob:"))]


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: object) -> None:
        pass


def test_every_method_has_a_page_that_is_up_to_date():
    folder = ROOT / "docs/methods"
    expected = {
        method_pages.page_name(method): method_pages.render(method, ROOT / "results")
        for method in METHODS.values()
    }
    assert {path.name for path in folder.iterdir()} == set(expected), "run `make tables`"
    for name, text in expected.items():
        assert (folder / name).read_text(encoding="utf-8") == text, f"{name}: run `make tables`"


@pytest.mark.parametrize("name", METHODS)
def test_the_settings_of_a_method_are_explained(name):
    method = METHODS[name]
    assert method_pages.explained(method) == set(method.settings())


def test_the_page_of_pamela_has_its_parts():
    text = (ROOT / "docs/methods/pamela.md").read_text(encoding="utf-8")
    assert r"$\theta_{j+1} = \theta_{j} - \alpha Q_{j} \circ \nabla L(\theta_{j})$" in text
    assert "| `method.skip` | `2` | integer or `none` |" in text
    assert "[arXiv:2010.09291](https://arxiv.org/abs/2010.09291)" in text
    assert re.search(r"\| CIFAR-FS 5-shot, PAMELA, Q learned directly, batch \| [\d.]+ ± [\d.]+ \|", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("θⱼ₋w", r"\theta_{j-w}"),
        ("Σⱼ vⱼ + U Σ Vᵀ", r"\sum_{j} v_{j} + U \Sigma V^{\top}"),
        ("(I + H/λ)⁻¹", r"(I + H/\lambda)^{-1}"),
        ("mean of f(x) over class k", r"\text{mean of } f(x) \text{ over class } k"),
        (
            "w^lu ← l_φ′(x),  ŷ = ½",
            r"w^{\mathrm{lu}} \leftarrow l_{\varphi'}(x), \quad \hat{y} = \tfrac{1}{2}",
        ),
        ("softmaxᵢ(τ cos(x))", r"\operatorname{softmax}_{i}(\tau \cos(x))"),
    ],
)
def test_equations_are_translated_to_tex(text, expected):
    assert to_tex(text) == expected


def test_a_sign_that_cannot_be_translated_is_an_error():
    with pytest.raises(ValueError, match="'☂' in 'θ ☂' has no translation"):
        to_tex("θ ☂")


def test_examples_in_docstrings_become_code_blocks():
    text = docstring_examples.fenced("Adds.\n\n>>> 1 + 1\n2\n\nThe end.")
    assert text == "Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThe end."


@pytest.mark.parametrize("module", [unicode_math, method_pages, docstring_examples])
def test_examples_in_the_tools_are_correct(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
