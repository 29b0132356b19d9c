"""A damaged or hostile image is read, or named in one line, and nothing is left behind."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp

from pathaware.inference.trained_model import TrainedModel
from pathaware.serve.app import make_app
from pathaware.serve.uploads import quiet
from tests.data.image_trees import class_folder
from tests.fuzz.calling import Called, call, must_be_sound
from tests.fuzz.images import KINDS, mutated

PREDICT = ["predict", "glyphs", "--out", "o.csv"]
LINES = {
    "images": [*PREDICT, "--support", "good", "--images", "odd"],
    "support": [*PREDICT, "--support", "odd", "--images", "good/a/0000.png"],
    "import": ["data", "import", "mine", "--from", "odd", "--data-dir", "data", "--size", "8"],
}


@contextmanager
def no_warnings() -> Iterator[None]:
    """A library's warning would be printed on a user's terminal."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    assert not seen, [str(one.message) for one in seen]


def try_images(command: str, contents: dict[str, bytes]) -> tuple[Called, int]:
    """Give images to a command; return how it ended and the number of images that it labelled."""
    labelled = []

    def prepare() -> None:
        for name in ("train/a", "train/b", "val/c", "test/d") if command == "import" else ("a", "b"):
            class_folder(Path("odd" if command != "images" else "good") / name, 2)
            class_folder(Path("good") / name, 2)
        first = {"import": "odd/train/a", "support": "odd/a", "images": "odd"}[command]
        Path(first).mkdir(exist_ok=True)
        for name, content in contents.items():
            (Path(first) / name).write_bytes(content)

    def count() -> None:
        if Path("o.csv").exists():
            labelled.extend(Path("o.csv").read_text(encoding="utf-8").splitlines()[1:])

    with no_warnings():
        called = call(LINES[command], prepare, count)
    must_be_sound(called)
    return called, len(labelled)


def try_each(command: str, seeds: range) -> int:
    """Give every kind of image to a command, one at a time; return how many were refused."""
    refused = 0
    for seed in seeds:
        for kind in KINDS:
            called, _ = try_images(command, {kind: mutated(kind, seed)})
            refused += called.code == 2
            if called.code == 2:
                assert kind in called.errors, called
    return refused


def try_together(seeds: range) -> None:
    """Each of many images is labelled, or named on standard error; ten names and a count are enough."""
    for seed in seeds:
        called, labelled = try_images("images", {kind: mutated(kind, seed) for kind in KINDS})
        problems = called.lines
        bad = len(KINDS) - labelled
        assert called.code == (1 if bad else 0), called
        assert len(problems) == (bad if bad <= 10 else 11), called


@pytest.mark.parametrize("command", ["support", "import"])
def test_undamaged_images_are_read(command):
    called, _ = try_images(command, {kind: made() for kind, made in KINDS.items()})
    assert called.code == 0, called


def test_undamaged_images_are_labelled():
    called, labelled = try_images("images", {kind: made() for kind, made in KINDS.items()})
    assert (called.code, called.lines, labelled) == (0, [], len(KINDS))


def test_mutated_images_are_labelled_or_named():
    try_together(range(3))


@pytest.mark.parametrize("command", ["support", "import"])
def test_a_mutated_image_is_used_or_refused(command):
    assert try_each(command, range(1)) >= 3  # or the mutations would be harmless


@pytest.fixture(scope="module")
def app() -> ASGIApp:
    return make_app(TrainedModel.open("glyphs", "cpu"), "glyphs")


async def upload_each(app: ASGIApp, seeds: range) -> int:
    """Upload images of every kind; return how many were refused."""
    refused = 0
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", verify=False) as client:
        for seed in seeds:
            session = (await client.post("/api/sessions")).json()["session"]
            for kind in KINDS:
                content = mutated(kind, seed)
                answer = await client.post(f"/api/sessions/{session}/pictures?label=a", content=content)
                assert answer.status_code in (201, 400, 413, 415, 422), (kind, seed, answer.text)
                expected = {"picture", "label"} if answer.status_code == 201 else {"error"}
                assert set(answer.json()) == expected, (kind, seed, answer.text)
                refused += answer.status_code != 201
            await client.delete(f"/api/sessions/{session}")
    return refused


def try_uploads(app: ASGIApp, seeds: range) -> int:
    with warnings.catch_warnings():
        quiet()  # as the server does when it starts
        return asyncio.run(upload_each(app, seeds))


def test_a_mutated_image_that_is_uploaded_is_used_or_refused(app):
    assert try_uploads(app, range(5)) >= 10


@pytest.mark.slow
def test_two_thousand_mutated_images(app):
    """36 × 18 uploaded, 40 × 18 labelled together, 18 × 18 in a support set and 18 × 18 imported."""
    assert len(KINDS) * (36 + 40 + 18 + 18) >= 2000
    try_uploads(app, range(5, 41))
    try_together(range(3, 43))
    for command in ("support", "import"):
        try_each(command, range(1, 19))
