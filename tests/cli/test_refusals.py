"""What cannot work is refused in one line, before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pathaware.inference.trained_model import find_run
from tests.data.image_trees import class_folder
from tests.fuzz.calling import call, must_be_sound

REFUSED = {
    "train sine --set problem.name=classification": "problem.name=classification",
    "train glyphs --set problem.name=sine": "problem.name=sine",
    "train sine --set training.pretrain=3 --out run": "training.pretrain",
    "train glyphs --data-dir file --out run": "--data-dir: file is a file",
    "evaluate glyphs --data-dir file": "No such option",
    "data show glyphs --data-dir file": "--data-dir: file is a file",
    "train glyphs --model logging:basicConfig --out run": "logging:basicConfig",
    "train glyphs --model this_module:does_not_exist --out run": "cannot be imported",
    "train sine --device cupu --out run": "error: --device: 'cupu' must be one of auto, cpu, cuda",
    "train glyphs --device cupu --out run": "error: --device: 'cupu' must be one of auto, cpu, cuda",
    "train preset recipe-sine-k5 --device cupu --out run": "error: --device: 'cupu' must be one of",
    "train folder --data nosuch --out run": "import it with `pathaware data import nosuch --from FOLDER`",
    "train --resume nowhere/none": "error: --resume: nowhere/none: no such folder",
    "pretrain --resume nowhere/none": "error: --resume: nowhere/none: no such folder",
    "demo --scale inf": "--scale",
    "demo --scale nan": "--scale",
    "demo --scale 1e300": "--scale",
    "evaluate sine --extend --steps 999999999999": "steps",
    f"evaluate sine --tasks 1{400 * '0'}": "… is not allowed; must be at most 1,000,000,000",
    f"train sine --test-tasks 1{400 * '0'} --out run": "must be at most 1,000,000,000",
    "evaluate sine --steps 99": "error: --extend: is needed for 99 steps, more than the 5",
    "evaluate sine --record file": "file exists; add --replace",
    "data show glyphs --out file": "file exists; add --replace",
    "bench --rows sine --json file": "file exists; add --replace",
    "predict glyphs --support letters --images letters --format csv --out a.png --show a.png": "--show",
    "predict glyphs --support letters --images letters --out file": "file exists; add --replace",
    "export glyphs --support letters --to safetensors --out file": "--out: file",
    "reproduce table4 --data nope": "nope",
    "learn letters --model glyphs --out new --show new": "--show: new is also the folder",
    "learn letters --model glyphs --out file --replace": "--out: file exists and is no classifier",
    "learn letters --model glyphs --show file": "file exists; add --replace",
    "learn letters --model glyphs --hold-out nan": "--hold-out",
    "learn letters --model glyphs --hold-out 0.7": "--hold-out: must be 0 to 0.5, not 0.7: every image",
    "learn letters --model glyphs --weights file": "--weights: is for a backbone",
    "learn letters --model json:loads": "json:loads",
    "predict glyphs --support letters --images letters --unknown nan": "--unknown",
    "predict glyphs --support letters --images letters --views both": "--views",
    "evaluate glyphs --calibrate": "--calibrate: the files of glyphs belong to the package",
    "evaluate glyphs --snapshots": "no snapshots",
    "evaluate glyphs --refine best": "--refine",
    "evaluate glyphs --show new.json": "--show: must end in .png",
    "evaluate glyphs --show file": "file exists; add --replace",
    "export glyphs --learner --out file": "--out: file",
    "export glyphs --learner --support letters": "--support: does not apply",
    "pretrain nowhere": "nowhere",
    "pretrain glyphs --epochs 0 --out run": "epochs",
    "pretrain glyphs --out file": "--out: file is a file",
    "pretrain --resume letters": "letters",
    "train sine --shots 0 --out run": "error: --shots: 0 is not allowed; must be at least 1",
    "train sine --shots many --out run": "'--shots'",
    "train sine --skip 6 --out run": "error: --skip: 6 is not allowed; must be 1 to 5",
    "train sine --skip two --out run": "error: --skip: 'two' is not allowed; must be an integer or none",
    "train sine --method mamel --out run": "error: --method: 'mamel' must be one of maml",
    "train sine --method maml --skip 2 --out run": "error: --skip: maml has no such setting",
    "train sine --iterations 0 --out run": "error: --iterations: 0 is not allowed",
    "train sine --set clip=1 --out run": "--set: 'clip=1' is not of the form",
    "train sine --set method.q --out run": "; write method.q=VALUE",
    "train sine --set training.device=tpu --out run": "error: device: 'tpu' must be one of auto, cpu, cuda",
    "train cosine --out run": "error: 'cosine' must be one of sine, miniimagenet",
    "train glyph --out run": "(see `pathaware data list`); did you mean glyphs?",
    "train glyphs --ways 5000 --out run": "ways 5000",
    "train glyphs --model vgg --out run": "error: --model: 'vgg' must be one of conv4, resnet12",
    "train glyphs --model nowhere:net --out run": "error: --model: nowhere:net cannot be imported",
    "train cifar-fs --data-dir empty --out run": "data set 'cifar-fs': not in",
    "train folder --out run": "--data: name the imported data set to train on",
    "train preset table9 --out run": "preset: 'table9' must be a TOML file or one of those that",
    "pretrain": "DATA: name at least one",
    "pretrain glyphs --minutes 1 --epochs 2": "--minutes: give the time or",
    "pretrain glyphs --minutes -1": "--minutes: -1.0 is not allowed",
    "pretrain glyphs --set batch": "--set: 'batch' is not of the form",
    "pretrain glyphs --splits test": "--splits: 'test' must be",
    "pretrain glyphs --width 4,5": "widths: conv4 has no such setting",
    "data import glyphs --from .": "glyphs: built in",
    "data import pets --from . --layout zoo": "layout: must be folder or one of mini",
    "data import pets --from . --proportions most": "proportions: must be three",
    "data import pets --from . --rotations": "rotations: applies to omniglot, not to folder",
    "data import fc100 --from . --size 84": "size: fixed for fc100",
    "data import pets --from . --size 0": "image size 0: must be between 1 and 1024",
    "data import pets --from . --min-images 0": "min-images: must be at least 1, not 0",
    "data import a/b --from .": "data set name 'a/b'",
    "data show pets": "data set 'pets': not in",
    f"data list --data-dir {300 * 'x'}": "error: xxx",
    "evaluate letters": "is not a run folder",
    "plot letters": "is not a run folder",
    "report letters": "is not a run folder",
    f"report {find_run('sine')} --out file": "file exists; add --replace",
    "train glyphs --model conv4 --weights file --out run": "weights",
    "train glyphs --model conv4 --adapt hands --out run": "adapt",
    "suggest glyphs --support letters --images letters --count 0": "--count",
    "models nowhere": "NAME: nowhere",
    "results verify nowhere": "error: DIR: nowhere is not a folder",
    "learn letters --model sine": "error: --model: sine was trained on sine-k10, not on images",
    "evaluate glyphs --split nosuch": "error: --split: 'nosuch' must be one of",
    "train sine --steps=0": "error: --steps: 0 is not allowed",
    "train sine --steps 3 --set method.steps=0": "error: steps: 0 is not allowed",
    "reproduce table2 --out /proc/x": "error: --out: /proc/x cannot be written (No such file or directory)",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_work_is_refused_and_nothing_is_changed(line: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")

    def letters() -> None:
        for name in ("a", "b"):
            class_folder(Path("letters") / name, 1)

    called = call([str(file) if word == "file" else word for word in line.split()], letters)
    assert called.code == 2, called
    assert REFUSED[line] in called.errors.replace(str(file), "file"), called
    must_be_sound(called)
    assert file.read_text() == "precious"


def test_a_folder_of_a_sweep_that_cannot_be_made_is_refused_with_one_reason(tmp_path: Path) -> None:
    file = tmp_path / "rates.toml"
    file.write_text('[problem]\nname = "sine"\n[sweep]\nmethod.name = ["maml"]\n')
    called = call(["sweep", str(file), "--out", "/proc/x"])
    assert called.errors == "error: --out: /proc/x cannot be written (No such file or directory)\n"


@pytest.mark.parametrize(
    "arguments",
    [["plot", "sine", "--out", ""], ["predict", "glyphs", "--format", ""], ["", "sine"], ["report", ""]],
)
def test_empty_arguments_are_refused(arguments: list[str]) -> None:
    called = call(arguments)
    assert called.code == 2
    assert "empty" in called.errors
    must_be_sound(called)
