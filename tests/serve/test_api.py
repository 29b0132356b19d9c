"""The API as a program uses it, and what it says about itself."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess

import pytest
import torch

from pathaware import FewShotClassifier
from pathaware.inference.trained_model import TrainedModel
from pathaware.serve.limits import Limits
from tests.inference.models import save_run
from tests.serve.serving import ROOT, asking, begin, png, saved_classifier, serving, teach

PAGE = ROOT / "docs/serving.md"


@pytest.fixture
def alone() -> TrainedModel:
    """The same model, in this process."""
    torch.set_default_dtype(torch.float32)
    return TrainedModel.open("glyphs", "cpu")


def test_a_session_from_its_beginning_to_its_end(client, alone):
    session = begin(client)
    lesson = [("x", png(1)), ("y", png(2)), ("x", png(3))]
    for label, picture in lesson:
        teach(client, session, label, picture)
    assert client.get(session).json() == {"classes": {"x": 2, "y": 1}, "adapted": False}
    found = client.post(f"{session}/adapt").json()
    assert found["classes"] == ["x", "y"]

    task = alone.pixels([p for _, p in lesson]), torch.tensor([0, 1, 0]), 2
    expected = [dataclasses.asdict(step) for step in alone.adapt(*task).steps]
    assert [step["step"] for step in found["steps"]] == [0, 1, 2, 3, 4, 5]
    for name in ("loss", "accuracy"):
        assert [s[name] for s in found["steps"]] == pytest.approx([s[name] for s in expected], abs=1e-5)

    answer = client.post(f"{session}/classify", content=png(4)).json()
    right = alone.adapt(*task).probabilities(alone.pixels([png(4)]))[0].tolist()
    assert [answer["probabilities"][c] for c in "xy"] == pytest.approx(right, abs=1e-5)
    assert answer["label"] == "xy"[right.index(max(right))]

    assert client.delete(session).status_code == 204
    assert client.get(session).status_code == 404


def test_a_run_with_constant_statistics_and_class_means_is_served(tmp_path):
    run = save_run(tmp_path / "run", recipe=True)
    model, lesson = TrainedModel.open(run, "cpu"), [png(1), png(2)]
    expected = model.adapt(model.pixels(lesson), torch.tensor([0, 1]), 2).probabilities(
        model.pixels([png(3)])
    )
    (tmp_path / "served").mkdir()
    with asking(tmp_path / "served", model=str(run)) as (_, client):
        session = begin(client)
        for label, picture in zip("xy", lesson, strict=True):
            teach(client, session, label, picture)
        client.post(f"{session}/adapt").raise_for_status()
        answer = client.post(f"{session}/classify?why=true", content=png(3)).raise_for_status().json()
    assert [answer["probabilities"][c] for c in "xy"] == pytest.approx(expected[0].tolist(), abs=1e-5)


def test_a_session_can_begin_with_the_pictures_of_a_saved_classifier(tmp_path):
    saved = saved_classifier(tmp_path / "xy-classifier")
    (tmp_path / "served").mkdir()
    (tmp_path / "new.png").write_bytes(png(4))
    expected = FewShotClassifier.from_run(saved, device="cpu").predict_proba([png(4)])[0]
    block = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[1]
    with asking(tmp_path / "served", model=str(saved)) as (server, client):
        assert client.get("/api/model").json()["saved"] == 3
        assert [each["label"] for each in client.get("/api/saved").json()] == ["x", "y", "y"]
        shown = TrainedModel.open(saved, "cpu").pixels([client.get("/api/saved/2.png").content])
        assert torch.equal(shown[0], TrainedModel.open(saved, "cpu").support.pixels[2])
        assert client.get("/api/saved/3.png").status_code == 404
        begun = client.post("/api/sessions?saved=true").raise_for_status().json()
        assert [picture["label"] for picture in begun["pictures"]] == ["x", "y", "y"]
        session = f"/api/sessions/{begun['session']}"
        assert client.get(session).json() == {"classes": {"x": 1, "y": 2}, "adapted": False}
        client.post(f"{session}/adapt").raise_for_status()
        answer = client.post(f"{session}/classify", content=png(4)).raise_for_status().json()
        assert [answer["probabilities"][c] for c in "xy"] == pytest.approx(expected.tolist(), abs=1e-5)
        client.delete(f"{session}/pictures/{begun['pictures'][2]['picture']}").raise_for_status()
        assert client.get(session).json()["classes"] == {"x": 1, "y": 1}
        assert client.get(begin(client)).json()["classes"] == {}
        script = f"set -eu\nURL={server.address}\n{block}"
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r'\{"label":"[xy]","probabilities":', done.stdout)


def test_a_session_with_saved_pictures_takes_a_saved_classifier(client):
    answer = client.post("/api/sessions?saved=true")
    assert answer.status_code == 404
    assert "not a saved classifier" in answer.json()["error"]
    assert [client.get(f"/api/saved{part}").status_code for part in ("", "/0.png")] == [404, 404]


def test_adapting_needs_two_classes(client):
    session = begin(client)
    teach(client, session, "only", png())
    answer = client.post(f"{session}/adapt")
    assert answer.status_code == 409
    assert "at least 2 classes" in answer.json()["error"]


def test_a_question_before_adapting_or_after_a_change_is_a_conflict(client, taught):
    ask = lambda: client.post(f"{taught}/classify", content=png(3))  # noqa: E731
    assert "has not adapted" in ask().json()["error"]
    client.post(f"{taught}/adapt").raise_for_status()
    assert ask().status_code == 200
    picture = teach(client, taught, "a", png(5))
    assert ask().status_code == 409
    assert "changed" in ask().json()["error"]
    client.delete(f"{taught}/pictures/{picture}").raise_for_status()
    assert ask().status_code == 409  # the same pictures again, but who would know
    client.post(f"{taught}/adapt").raise_for_status()
    assert ask().status_code == 200


def test_another_name_for_a_class_changes_no_answer(client, taught):
    client.post(f"{taught}/adapt").raise_for_status()
    before = client.post(f"{taught}/classify", content=png(3)).json()["probabilities"]
    assert client.post(f"{taught}/labels/a", params={"to": " cat "}).json() == {"label": "cat"}
    after = client.post(f"{taught}/classify", content=png(3)).json()["probabilities"]
    assert after == {"cat": before["a"], "b": before["b"]}
    assert client.get(taught).json()["classes"] == {"cat": 1, "b": 1}


def test_a_page_that_closes_ends_its_session_by_post(client, taught):
    assert client.post(f"{taught}/forget").status_code == 204
    assert client.get(taught).status_code == 404


def test_the_model_says_what_it_is(client):
    about = client.get("/api/model").json()
    assert about["limits"] == dataclasses.asdict(Limits())
    assert (about["name"], about["ways"], about["size"], about["channels"]) == ("glyphs", 5, 28, 1)


def test_the_description_is_there_and_nothing_loads_from_elsewhere(client):
    paths = client.get("/api/openapi.json").json()["paths"]
    assert "/api/sessions/{session}/classify" in paths
    scripts = [f"/{path.name}" for path in (ROOT / "src/pathaware/serve/page").glob("*.js")]
    for address in ("/", *scripts, "/style.css", "/icon.svg"):
        answer = client.get(address)
        assert answer.status_code == 200
        assert re.findall(r"https?://(?!www\.w3\.org)", answer.text) == []
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_examples_can_be_told_apart_and_are_not_written_down(server, client):
    session = begin(client)
    found = client.get("/api/examples").json()
    for example in found:
        if not example["asked"]:
            teach(client, session, example["label"], client.get(example["picture"]).content)
    client.post(f"{session}/adapt").raise_for_status()
    asked = [e for e in found if e["asked"]]
    answers = [client.post(f"{session}/classify", content=client.get(e["picture"]).content) for e in asked]
    right = sum(a.json()["label"] == e["label"] for a, e in zip(answers, asked, strict=True))
    assert right >= len(asked) - 1
    assert server.written() == []


def test_the_limits_in_the_document_are_those_of_the_server():
    rows = re.findall(r"^\| `(\w+)` \| ([\d,.]+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {name: float(value.replace(",", "")) for name, value in rows} == dataclasses.asdict(Limits())


def test_the_commands_in_the_document_do_what_it_says(tmp_path):
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    script = "set -eu\n" + blocks[0]
    for name, seed in (("cat-1", 1), ("cat-2", 2), ("dog-1", 3), ("dog-2", 4), ("new", 5)):
        (tmp_path / f"{name}.png").write_bytes(png(seed))
    with serving(tmp_path) as server:
        script = script.replace("http://127.0.0.1:8765", server.address)
        assert server.address in script
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert '"steps":[{"step":0,' in done.stdout
    answer = r'\{"label":"(cat|dog)","probabilities":\{"cat":0\.\d+,"dog":0\.\d+\},"warning":'
    assert re.search(answer, done.stdout)
    assert '{"error":"no such session' in done.stdout
