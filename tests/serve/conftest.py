"""A server that the tests of a file share."""

from __future__ import annotations

import httpx
import pytest

from tests.serve.serving import CHARACTERS, drawings, serving, taught_session


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    from tests.serve.browsing import browsing

    with browsing() as opened:
        yield opened


@pytest.fixture
def open_page(browser, server):
    """Opens the page, as a `Visit` that is checked and closed at the end."""
    from contextlib import ExitStack

    from tests.serve.browsing import visiting

    with ExitStack() as stack:
        yield lambda **context: stack.enter_context(visiting(browser, server.address, **context))


@pytest.fixture
def visit(open_page):
    return open_page()


@pytest.fixture(scope="session")
def shapes() -> dict[str, list[bytes]]:
    """Five drawings of each character."""
    return {name: drawings(name, 5) for name in CHARACTERS}


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.address, timeout=60) as made:
        yield made


@pytest.fixture
def taught(client) -> str:
    """The address of a session with two classes of one picture each."""
    return taught_session(client)
