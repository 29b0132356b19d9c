"""Help pages: defaults, panels, examples, suggestions and shell completion."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pathaware.cli import PANELS, command, main, options
from pathaware.cli import options as shared
from pathaware.cli.train import default_texts
from pathaware.core import VERSION
from pathaware.data import IMPORTERS, imported_stores, open_store
from pathaware.data.store import MANIFEST
from pathaware.inference.trained_model import shipped
from pathaware.methods import METHODS
from pathaware.training.config import Config
from pathaware.training.presets import load_preset, presets
from tests.calling import done, refused
from tests.cli.test_commands import process

Command = Any


def leaves(group: Command, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Command]:
    """All commands by their words, groups included."""
    found = {path: group}
    for name, each in getattr(group, "commands", {}).items():
        found |= leaves(each, (*path, name))
    return found


COMMANDS = leaves(command)
LEAVES = {path: each for path, each in COMMANDS.items() if not hasattr(each, "commands")}
PANEL_TITLES = {shared.TASKS, shared.METHOD, shared.TRAINING, shared.DATA, shared.OUTPUT, shared.COMPUTE}
OWN_PANELS = {"Server": {("serve",)}, "Class folders": {("data", "import")}, "Measurement": {("bench",)}}
NO_DEFAULT = {
    *("record", "show", "json", "plot", "out of online", "cluster", "allow_host"),  # nothing happens without
    *("split_lists", "proportions", "run", "setting", "sort", "save_to"),
}


def help_page(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


def text_of_option(page: str, parameter: Any) -> str:
    """The last column of an option's lines, without spaces: where lines break does not matter."""
    lines = page.splitlines()
    name = parameter.opts[0]
    start = next(i for i, line in enumerate(lines) if re.match(rf"[│ *]{{1,6}}{name}[\s,]", line))
    rest = (i for i in range(start + 1, len(lines)) if re.match(r"([│ *]{1,6}--[a-z]|╰)", lines[i]))
    column = lines[start].index(parameter.help.split()[0], lines[start].index(name) + len(name))
    return "".join(line[column:].rstrip("│ ") for line in lines[start : next(rest)]).replace(" ", "")


def option_parameters(command: Command) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option" and p.name != "help"]


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_help_shows_the_default_of_every_option(path, width, capsys, monkeypatch):
    """Rich drops words in square brackets that look like markup, such as a default in a help text."""
    monkeypatch.setenv("COLUMNS", str(width))
    page = help_page(capsys, *path)
    found_later = default_texts(path[-1]) if path[0] == "train" and path[-1] != "preset" else {}
    for parameter in option_parameters(LEAVES[path]):
        text = text_of_option(page, parameter)
        assert text.startswith(parameter.help.replace(" ", ""))
        if parameter.required or (path == ("train", "folder") and parameter.name == "data"):
            assert text.endswith("[required]")
            continue
        default = found_later.get(parameter.name, parameter.show_default)
        if isinstance(default, str):
            shown = f"({default})"
        elif parameter.is_flag and not parameter.secondary_opts:
            assert parameter.default in (False, None)  # absent: off
            continue
        elif parameter.default is None or parameter.multiple:
            assert {parameter.name, f"{parameter.name} of {path[-1]}"} & NO_DEFAULT, parameter.name
            continue
        elif parameter.is_flag:
            shown = (parameter.opts if parameter.default else parameter.secondary_opts)[0].lstrip("-")
        else:
            shown = str(parameter.default)
        assert text.endswith(f"[default:{shown}]".replace(" ", "")), parameter.name


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_options_are_in_panels_with_shared_names(path):
    for parameter in option_parameters(LEAVES[path]):
        panel = parameter.rich_help_panel
        assert panel in PANEL_TITLES or path in OWN_PANELS[panel], parameter.name


def test_every_command_is_in_a_panel_of_the_first_page(capsys):
    page = help_page(capsys)
    assert re.findall(r"╭─ (.*?) ─", page) == ["Options", *PANELS]
    assert {name for commands in PANELS.values() for name in commands} == set(COMMANDS[()].commands)


def test_help_of_training_on_sine_waves(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    page = help_page(capsys, "train", "sine")
    for default in ("5 for pamela", "2", "0.1 for pamela", "40000", "runs/sine-k10-pamela-seed0"):
        assert f"[default: ({default})]" in page


@pytest.mark.parametrize("command", ["sine", "glyphs", "cifar-fs"])
def test_the_defaults_of_training_are_those_of_the_configuration(command):
    """`train --help` must not promise other settings than training uses."""
    texts = default_texts(command)
    tables = load_preset("glyphs") if command == "glyphs" else {"problem": {"name": "sine"}}
    if command == "cifar-fs":
        tables = load_preset("table2-cifar-fs-pamela-5shot")
    config = Config.from_dict({**tables, "method": {**tables.get("method", {}), "name": "pamela"}})
    values = config.to_dict()
    for option in ("shots", "queries"):
        assert texts[option] == str(values["problem"][option])
    for option in ("iterations", "tasks", "seed"):
        assert texts[option] == str(values["training"][option])
    for option in ("steps", "skip", "rate"):
        assert texts[option].split()[0] == str(values["method"][option])


def test_stated_defaults_are_true():
    """Those that the help writes out because the library decides them."""
    import inspect

    from pathaware.models import conv4
    from pathaware.training.config import Training
    from pathaware.training.problems import Classification, Sine
    from pathaware_research.bench.workloads import ON_CPU, ON_CUDA
    from pathaware_research.cli.bench import bench
    from pathaware_research.online.streams import STREAMS

    def shown(*path: str) -> dict[str, str]:
        return {p.name: p.show_default for p in LEAVES[path].params}

    tasks = f"{Sine.evaluation_tasks} for sine, {Classification.evaluation_tasks} for images"
    for path in (("evaluate",), ("report",), ("reproduce",), ("sweep",)):
        assert shown(*path)["tasks"] == tasks
    items = {name: inspect.signature(make).parameters["items"].default for name, make in STREAMS.items()}
    assert shown("online")["items"] == f"{items['sine']} for sine, {items['glyphs']} for glyphs"
    assert shown("bench")["precision"] == Training.precision
    assert shown("bench")["rows"].startswith(f"{','.join(ON_CPU)} on a CPU, {','.join(ON_CUDA)} on a GPU")
    assert '30 if chosen.type == "cuda" else 7 if scaling else 11' in inspect.getsource(bench)
    width = inspect.signature(conv4).parameters["width"].default
    assert shown("train", "cifar-fs")["width"] == f"{width} for conv4"


def test_commands_that_take_the_same_models_say_so_alike():
    """`TrainedModel.open` takes runs, classifiers and shipped models."""
    commands = [LEAVES[(name,)] for name in ("predict", "serve", "suggest", "export")]
    (text,) = {p.help for command in commands for p in command.params if p.name == "run"}
    assert all(word in text for word in ("run", "classifier", "glyphs", "photos"))


def examples(path: tuple[str, ...]) -> list[str]:
    title, *lines = (COMMANDS[path].epilog or "").splitlines()
    assert title == "Examples:"
    return [line.strip() for line in lines]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "pathaware")
def test_help_ends_with_examples_that_parse(path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = help_page(capsys, *path)
    assert examples(path)
    for example in examples(path):
        assert example in page, "wrapped at 80 columns: cannot be copied"
        program, *words = shlex.split(example)
        assert program == "pathaware"
        if path and path[0] != "pathaware":
            assert words[: len(path)] == list(path) or path == ("train",)
        if "COMMAND" in words:
            continue
        leaf = COMMANDS[()]
        while hasattr(leaf, "commands") and words[0] in leaf.commands:
            leaf = leaf.commands[words.pop(0)]
        context = leaf.make_context(leaf.name, words)  # raises if it does not parse
        if method := context.params.get("method"):
            assert method in METHODS
        if path == ("train", "preset"):
            assert context.params["name"] in presets()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A folder with what examples name: labelled letters, new pictures, and two short runs."""
    folder = tmp_path_factory.mktemp("examples")
    store = open_store("glyphs")
    for row, name in enumerate(("alpha", "beta", "gamma")):
        for place, index in (("letters", 0), ("letters", 1), ("new", 2)):
            target = folder / place / (name if place == "letters" else "")
            target.mkdir(parents=True, exist_ok=True)
            pixels = store.images[20 * row + index].numpy().squeeze()
            Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(target / f"{name}{index}.png")
    for method in ("pamela", "maml"):
        line = "train", "sine", "--method", method, "--iterations", "2", "--set", "training.compile=off"
        done(*line, cwd=folder)
    return folder


CHEAP = (
    *(("predict",), ("evaluate",), ("plot",), ("report",), ("methods",)),
    *(("data",), ("data", "list"), ("data", "show")),
)


@pytest.mark.parametrize("path", CHEAP, ids=" ".join)
def test_cheap_examples_run(path, workplace):
    figures = path in (("plot",), ("report",))  # seconds each: the one with the most runs will do
    for example in examples(path)[-1:] if figures else examples(path):
        words = shlex.split(example)[1:]
        if "omniglot" in words:
            continue  # needs an import
        if path in (("report",), ("evaluate",)):
            words += ["--tasks", "10"]  # instead of hundreds
        done(*words, cwd=workplace)


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        ("trian glyphs", "Did you mean 'train', 'pretrain'?"),
        ("train glyfs", "did you mean glyphs?"),
        ("train sine --method mamel", "did you mean maml?"),
        ("train sine --shot 5", "--shots"),
        ("train sine --set trainin.clip=1", "did you mean training.clip?"),
        ("train sine --set training.clop=1", "did you mean clip?"),
        ("train sine --set method.stepz=1", "did you mean steps?"),
        ("train preset table2-cifar-pamela-5shot", "did you mean table2-cifar-fs-pamela-5shot?"),
        ("train glyphs --model resnet", "did you mean resnet12?"),
        ("train folder --data glyfs", "did you mean glyphs?"),
        ("data show glyfs", "did you mean glyphs?"),
        ("data import birds --from . --layout omniglott", "did you mean omniglot?"),
        ("evaluate glyfs", "did you mean glyphs?"),
        ("predict glyfs --support . --images .", "did you mean glyphs?"),
        ("plot runs/sine-k10-pamela-sed0", "did you mean runs/sine-k10-pamela-seed0?"),
        ("methods protoypical", "did you mean prototypical?"),
        ("reproduce tabel1", "did you mean table1?"),
        ("online sin", "did you mean sine?"),
        ("online sine --only onlin", "did you mean online?"),
        ("export glyphs --support letters --to onx", "did you mean onnx?"),
        ("bench --rows sin", "did you mean sine?"),
        ("bench --only highr", "did you mean higher?"),
    ],
)
def test_a_misspelled_name_is_answered_with_the_nearest(arguments, suggestion, workplace):
    assert suggestion in refused(*arguments.split(), cwd=workplace)


@pytest.mark.parametrize("path", [path for path in COMMANDS if path], ids=" ".join)
def test_a_command_without_what_it_needs_points_to_its_help(path, capsys):
    required = [p for p in COMMANDS[path].params if p.required]
    if hasattr(COMMANDS[path], "commands"):
        with pytest.raises(SystemExit) as left:
            main(list(path))
        assert "Commands" in capsys.readouterr().out
    elif required:
        with pytest.raises(SystemExit) as left:
            main(list(path))
        assert capsys.readouterr().err.rstrip().endswith(f"{' '.join(path)} --help`.")
    else:
        return
    assert left.value.code == 2


def test_help_does_not_wait_for_torch():
    code = "import sys, pathaware.cli; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_version():
    assert done("--version") == f"pathaware {VERSION}\n"


def test_completed_names_are_those_of_the_library(monkeypatch, workplace, tmp_path):
    monkeypatch.chdir(workplace)
    assert options.complete_method("") == sorted(METHODS)
    assert options.complete_method("protot") == ["prototypical"]
    assert options.complete_preset("gly") == [name for name in presets() if name.startswith("gly")]
    assert set(options.DATA_SETS) == {*IMPORTERS, "glyphs"}
    assert options.complete_data("omni") == ["omniglot"]
    for folder in ("birds", ".birds"):  # a dot: an import in progress
        (tmp_path / folder).mkdir()
        (tmp_path / folder / MANIFEST).touch()
    monkeypatch.setenv("PATHAWARE_DATA", str(tmp_path))
    assert [path.name for path in imported_stores()] == ["birds"]
    assert options.complete_data("") == sorted([*IMPORTERS, "birds", "glyphs"])
    assert options.complete_model("") == [
        *shipped(),
        "runs/sine-k10-maml-seed0",
        "runs/sine-k10-pamela-seed0",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pathaware tr", ["train"]),
        ("pathaware train sine --method protot", ["prototypical"]),
        ("pathaware train sine --me", ["--method"]),
        ("pathaware predict gly", ["glyphs"]),
    ],
)
def test_bash_completes_names(line, expected, tmp_path):
    """As the script of `pathaware --show-completion bash` asks for them."""
    environment = {
        **os.environ,
        "_PATHAWARE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    code = "import sys; sys.argv = ['pathaware']; from pathaware.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == expected, done.stderr


def test_the_script_for_completion_is_printed(tmp_path):
    ended = process("--show-completion", "bash", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "complete" in ended.stdout
