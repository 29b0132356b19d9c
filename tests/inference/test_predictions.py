"""Predictions in the forms that people and programs read."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.data import contact_sheet
from pathaware.data.contact_sheet import fitted, font
from pathaware.inference.prediction_sheet import MAX_IMAGES, prediction_sheet
from pathaware.inference.predictions import Predictions, Reason, Score, true_labels
from pathaware.inference.trained_model import SupportSet
from pathaware.training.tables import markdown
from tests.inference.models import INK, PHOTO, pixels

FOUND = Predictions(
    ["new/a.png", 'new/=1+1, "b".png'],
    ("Ærfugl", "bee", "cat"),
    torch.tensor([[0.25, 0.125, 0.625], [0.9, 0.0600001, 0.0399999]]),
)


def test_a_csv_has_a_column_for_every_class():
    assert FOUND.csv() == (
        "picture,label,probability,Ærfugl,bee,cat\n"
        "new/a.png,cat,0.625000,0.250000,0.125000,0.625000\n"
        '"new/=1+1, ""b"".png",Ærfugl,0.900000,0.900000,0.060000,0.040000\n'
    )


def test_names_with_anything_in_them_come_back_from_a_csv():
    odd = Predictions(["a\nb\r.png", "-1,'\t;|.png"], ('x"y', "z,\n"), torch.tensor([[0.5, 0.5]] * 2))
    rows = list(csv.reader(io.StringIO(odd.csv(), newline="")))
    assert rows[0][3:] == ['x"y', "z,\n"]
    assert [row[0] for row in rows[1:]] == odd.images


def test_json_is_a_list_of_pictures():
    assert json.loads(FOUND.json()) == [
        {
            "picture": "new/a.png",
            "label": "cat",
            "probabilities": {"Ærfugl": 0.25, "bee": 0.125, "cat": 0.625},
        },
        {
            "picture": 'new/=1+1, "b".png',
            "label": "Ærfugl",
            "probabilities": {"Ærfugl": 0.9, "bee": 0.06, "cat": 0.04},
        },
    ]
    best = json.loads(FOUND.json(top=2))[0]["probabilities"]
    assert list(best.items()) == [("cat", 0.625), ("Ærfugl", 0.25)]


def test_a_table_has_the_label_and_those_after_it():
    assert markdown(FOUND.table()).splitlines()[0] == "| picture | label | probability | runner-up |"
    assert FOUND.table().rows[0].cells == ("new/a.png", "cat", "0.625", "Ærfugl (0.250)")
    assert FOUND.table(top=1).header == ("picture", "label", "probability")
    assert FOUND.table(top=9).rows[1].cells[3:] == ("bee (0.060)", "cat (0.040)")


def test_a_table_holds_nothing_that_a_terminal_would_obey():
    odd = Predictions(["\x1b[31m.png"], ("a\x07", "b"), torch.tensor([[0.75, 0.25]]))
    assert odd.table().rows[0].cells[:2] == (r"\x1b[31m.png", r"a\x07")


def test_without_pictures_the_forms_are_empty_but_whole():
    none = Predictions([], ("a", "b"), torch.zeros(0, 2))
    assert none.csv() == "picture,label,probability,a,b\n"
    assert json.loads(none.json()) == []
    assert not none.table().rows


def test_the_score_says_what_each_class_was_taken_for():
    names = ["t/cat/1.png", "t/cat/2.png", "t/cat/old/3.png", "t/bee/1.png", "t/x/1.png"]
    right = torch.eye(3)
    found = Predictions(names, ("ant", "bee", "cat"), right[[2, 1, 2, 1, 0]])
    truths = true_labels(Path("t"), found)
    assert truths == ["cat", "cat", "cat", "bee", None]
    score = Score.of(found, truths)
    assert score.accuracy == 0.75
    assert score.lines() == [
        "accuracy 0.7500, 3 of 4 right; 1 in no class folder are not counted",
        "cat: 2 of 3 right; 1 as bee",
        "bee: 1 of 1 right",
    ]


def test_members_of_an_archive_have_folders_too():
    found = Predictions(["my/t.zip:bee/1.png"], ("ant", "bee"), torch.eye(2)[:1])
    assert true_labels(Path("my/t.zip"), found) == ["bee"]


def test_a_score_without_class_folders_is_refused():
    with pytest.raises(UsageError, match=r"score: no picture in t lies in a folder named after a class"):
        true_labels(Path("t"), Predictions(["t/1.png"], ("ant", "bee"), torch.eye(2)[:1]))


def support(classes: int, inputs=INK) -> SupportSet:
    """Make a support set with one example of the first class, two of the next, and so on."""
    labels = torch.cat([torch.full((1 + i % 7,), i) for i in range(classes)])
    return SupportSet(tuple(f"class {i}" for i in range(classes)), pixels(len(labels), inputs), labels)


@pytest.mark.parametrize(("classes", "count"), [(2, 1), (30, 40), (5, MAX_IMAGES + 3)])
@pytest.mark.parametrize("inputs", [INK, PHOTO], ids=["ink", "photo"])
def test_a_sheet_shows_every_picture_up_to_some_hundred(classes, count, inputs):
    examples = support(classes, inputs)
    names = [f"{i}.png" for i in range(count)]
    found = Predictions(names, examples.classes, torch.rand(count, classes).softmax(1))
    shown = pixels(count, inputs)
    sheet = prediction_sheet("title", examples, shown, found)
    assert sheet.width == 1188
    assert sheet.height < 4000
    rows = -(-min(count, MAX_IMAGES) // 12)
    assert sheet.height > rows * 140


def test_wrong_labels_are_framed():
    examples = support(2)
    found = Predictions(["a.png", "b.png"], examples.classes, torch.tensor([[0.9, 0.1], [0.2, 0.8]]))
    plain, framed = (
        np.asarray(prediction_sheet("t", examples, pixels(2), found, truths)).astype(int)
        for truths in (None, ["class 0", "class 0"])
    )
    assert plain.shape == framed.shape
    changed = np.argwhere((plain != framed).any(2))
    assert len(changed)
    assert changed[:, 1].min() > 84  # the second one only


def test_a_name_that_does_not_fit_keeps_both_ends():
    assert fitted("bee", 80, font(12)) == "bee"
    short = fitted("class number 12", 80, font(12))
    assert short.startswith("cl")
    assert short.endswith("12")
    assert font(12).getlength(short) <= 80
    assert fitted("anything", 1, font(12)) == "…"
    assert fitted("a\x1bb", 80, font(12)) == "a�b"


def test_unknown_images_and_reasons_are_in_every_form():
    found = Predictions(
        ["one.png", "two.png"],
        ("a", "b"),
        torch.tensor([[0.9, 0.1], [0.2, 0.8]]),
        unknown=[True, False],
        why=[Reason([(0, 0.5)], []), Reason([(1, 0.25)], [(0, -0.125)])],
        support=("a/x.png", "b/y.png"),
    )
    assert found.labels == ["none of these", "b"]
    assert "| one.png | none of these |" in markdown(found.table())
    assert "b/y.png (+0.25) | a/x.png (-0.125)" in markdown(found.table())
    header, first, second = csv.reader(io.StringIO(found.csv()))
    assert header[-2:] == ["for", "against"]
    assert (first[1], second[1]) == ("none of these", "b")
    assert second[-2:] == ["b/y.png (+0.25)", "a/x.png (-0.125)"]
    one, two = json.loads(found.json())
    assert (one["unknown"], two["unknown"]) == (True, False)
    assert two["for"] == [{"picture": "b/y.png", "influence": 0.25}]
    assert two["against"] == [{"picture": "a/x.png", "influence": -0.125}]
    support = SupportSet(("a", "b"), pixels(2), torch.tensor([0, 1]))
    plain = Predictions(found.images, found.classes, found.probabilities)
    with_reasons, without = (prediction_sheet("t", support, pixels(2), each) for each in (found, plain))
    assert with_reasons.height > without.height
    assert Score.of(found, ["a", "b"]).given == {"a": {"none of these": 1}, "b": {"b": 1}}


def test_a_class_may_not_be_called_none_of_these_where_that_has_a_meaning():
    with pytest.raises(UsageError, match="rename it") as error:
        Predictions(["x"], ("none of these", "b"), torch.tensor([[0.5, 0.5]]), unknown=[False])
    assert error.value.field == "unknown"


def test_a_label_is_drawn_in_a_font_that_has_it(monkeypatch):
    stix = str(Path(matplotlib.get_data_path()) / "fonts/ttf/STIXGeneral.ttf")
    odd = min(contact_sheet._characters(stix) - contact_sheet._characters(contact_sheet.font(12).path))
    monkeypatch.setattr(contact_sheet, "_installed", lambda: [stix])
    contact_sheet._font_file.cache_clear()
    assert font(12, text="ordinary").path.endswith("DejaVuSans.ttf")
    assert font(12, text=f"a {odd}").path == stix
    assert contact_sheet.undrawable([f"a {odd}", "犬"]) == "犬"
    contact_sheet._font_file.cache_clear()
