"""A server that the tests of a file share."""

from __future__ import annotations

import httpx
import pytest

from tests.serve.serving import begin, png, serving, teach


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.address, timeout=60) as made:
        yield made


@pytest.fixture
def taught(client) -> str:
    """The address of a session with two classes of one picture each."""
    session = begin(client)
    teach(client, session, "a", png(1))
    teach(client, session, "b", png(2))
    return session
