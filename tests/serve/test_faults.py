"""Responses to server errors, and to requests that the model cannot fulfil."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.inference.trained_model import AdaptationStep, TrainedModel
from pathaware.serve.app import make_app
from tests.serve.serving import png


@pytest.fixture
def model() -> TrainedModel:
    torch.set_default_dtype(torch.float32)
    return TrainedModel.open("glyphs", "cpu")


def adapted(model: TrainedModel) -> httpx.Response:
    """The answer to a wish to adapt."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(model, "glyphs"), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            session = "/api/sessions/" + (await client.post("/api/sessions")).json()["session"]
            for label in "ab":
                await client.post(f"{session}/pictures?label={label}", content=png())
            return await client.post(f"{session}/adapt")

    return asyncio.run(ask())


OURS = "something went wrong in the server; its terminal says what"


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (ZeroDivisionError("a secret of the server"), 500, OURS),
        (UsageError("classes: this method was trained for 5"), 409, "classes: this method was trained for 5"),
    ],
)
def test_a_mistake_of_ours_is_on_our_terminal_and_a_limit_of_the_method_in_the_answer(
    model, capfd, raised, status, said
):
    def adapt_each(*_: Any) -> Any:
        raise raised

    model.adapt_each = adapt_each  # type: ignore[method-assign]
    answer = adapted(model)
    assert (answer.status_code, answer.json()) == (status, {"error": said})
    assert ("a secret of the server" in capfd.readouterr().err) == (status == 500)


def test_numbers_that_json_does_not_know_are_null(model):
    diverged = (AdaptationStep(0, float("nan"), 0.5), AdaptationStep(1, float("inf"), 1.0))
    adapt_each = model.adapt_each
    model.adapt_each = lambda *tasks: [replace(each, steps=diverged) for each in adapt_each(*tasks)]  # type: ignore[method-assign]
    answer = adapted(model)
    assert answer.status_code == 200
    assert [step["loss"] for step in answer.json()["steps"]] == [None, None]
