"""Write docs/methods/NAME.md, one page per method, from its file, its `METHOD` and the records in results/.

    python -m pathaware_research.pages.method_pages docs/methods results

A page has the method's paper, its update as mathematics (`tools.unicode_math`), its settings, how it differs
from the authors' code, and what it reached. Equations of a docstring are indented lines; two or more
spaces that do not follow a comma separate an equation from its comment.
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tools.unicode_math import to_tex

from pathaware.core.rule import Rule
from pathaware.methods import METHODS, describe_method
from pathaware.methods.method import Method, identity, python_name
from pathaware.sweep.intervals import with_interval
from pathaware.training.tables import Table, pipe_table
from pathaware_research.experiments import Result, Results
from pathaware_research.paper.method_table import method_table
from pathaware_research.paper.tables import TableSpec, table1, table2, table3
from pathaware_research.records import read_results

_COMMON = {
    "steps": "`steps` is the number of inner steps.",
    "rate": "`rate` is the step size of the inner loop, or its initial value if it is learned.",
}
"""The meaning of the settings that every rule has; the others are explained in docstrings."""


def page_name(method: Method) -> str:
    """The file of a method's page, named after its module."""
    return f"{module_name(method).replace('_', '-')}.md"


def module_name(method: Method) -> str:
    """The file of a method without its ending; several methods may share a rule."""
    return _modules()[method.name].__name__.rpartition(".")[2]


@cache
def _modules() -> dict[str, ModuleType]:
    found = {name: module for name, module in sys.modules.items() if name.startswith("pathaware.methods.")}
    return {module.METHOD.name: module for module in found.values() if hasattr(module, "METHOD")}


def render(method: Method, results: Path) -> str:
    """The page of a method in Markdown."""
    title, update, text, departures = sections(describe_method(method.name))
    kinds = {"second": "second-order", "first": "first-order", "none": "no inner loop"}
    facts = [f"`{method.name}`: {method.summary}.", f"Paper: {_linked(method.paper)}."]
    file = f"src/pathaware/methods/{module_name(method)}.py"
    tasks = "classification and regression" if method.regression else "classification only"
    facts.append(f"Meta-gradient: {kinds[method.order]}. Tasks: {tasks}. Source: [`{file}`](../../{file}).")
    data = "sine" if method.regression else "glyphs"
    parts = [
        f"# {title}",
        "<!-- made by `make tables` -->",
        *facts,
        f"Good for: {_uses()[method.name]}",
        f"```python\n{example(method)}\n```",
        f"```console\n$ pathaware train {data} --method {method.name}\n```",
    ]
    parts += ["## Update", update, text]
    parts += ["## Settings", _settings(method)]
    if departures:
        parts += ["## Departures from the authors' code", departures]
    parts += ["## Results", _results(method, results)]
    return "\n\n".join(part for part in parts if part) + "\n"


@cache
def _uses() -> dict[str, str]:
    return tomllib.loads(Path(__file__).with_name("method_uses.toml").read_text(encoding="utf-8"))


def example(method: Method) -> str:
    """Four lines of Python: the learner with its first settings, a step of meta-training, a new task."""
    shown = [f"{python_name(name)}={value!r}" for name, value in list(method.settings().items())[:3]]
    call = ", ".join(["network", "loss", *shown]).replace("'", '"')
    return "\n".join(
        [
            f"learner = pathaware.{method.function_name}({call})",
            "losses = learner.backward(episodes)  # of each task; adds the meta-gradient to .grad",
            "optimizer.step()",
            "adapted = learner.adapt(support_x, support_y)  # for one task, an nn.Module",
        ]
    )


def sections(docstring: str) -> tuple[str, str, str, str]:
    """Split the docstring of a method's file: its name, update, explanation, and departures, in Markdown."""
    first, _, rest = docstring.partition("\n")
    title = re.split(r"[,(]", first)[0].strip()
    body, _, departures = rest.partition("Departures from the authors' code:")
    blocks = re.split(r"\n\s*\n", body.strip("\n"))
    update = [block for block in blocks[:1] if block.startswith("    ")]
    text = "\n\n".join(_block(block) for block in blocks[len(update) :])
    return title, "".join(_equations(block) for block in update), text.strip(), _departures(departures)


def _block(block: str) -> str:
    return _equations(block) if block.startswith("    ") else block


def _departures(text: str) -> str:
    """A list whose items may contain equations; Python-Markdown wants four spaces before their parts."""
    parts = []
    for block in re.split(r"\n\s*\n", text.strip("\n").strip(" ")):
        if block.startswith("      "):
            equation, comment = split_equation(block)
            parts.append(
                f"    $${to_tex(equation)}$$\n\n    ({comment})" if comment else f"    $${to_tex(equation)}$$"
            )
        else:
            paragraph = (
                block if block.startswith("-") else re.sub(r"^  (?=\S)", "    ", block, flags=re.MULTILINE)
            )
            parts.append(paragraph)
    text = "\n\n".join(parts)
    return text[:1].upper() + text[1:]


def split_equation(line: str) -> tuple[str, str]:
    """An equation and the comment beside it.

    >>> split_equation("    θ₀ = γ ∘ θ,  γ = 1          gates      `[T, D]`")
    ('θ₀ = γ ∘ θ,  γ = 1', 'gates, `[T, D]`')
    """
    equation, *comments = re.split(r"(?<![, ]) {2,}(?=\S)", line.strip())
    return equation, re.sub(r" {2,}", " ", ", ".join(comments))


def _equations(block: str) -> str:
    """A table of equations and comments, or the equations alone."""
    pairs = [split_equation(line) for line in block.splitlines()]
    if not any(comment for _, comment in pairs):
        return "\n\n".join(f"$${to_tex(equation)}$$" for equation, _ in pairs)
    rows = [(f"${to_tex(equation)}$", comment) for equation, comment in pairs]
    return pipe_table(Table.of("", ("equation", "where"), rows))


def _linked(paper: str) -> str:
    """The citation with a link to arXiv or OpenReview."""
    paper = re.sub(r"arXiv:(\S+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)
    return re.sub(r"OpenReview (\S+)", r"[OpenReview \1](https://openreview.net/forum?id=\1)", paper)


def _settings(method: Method) -> str:
    """A table of names, defaults and allowed values, and what the docstrings of its parts say about them."""
    if not method.settings():
        return "None."
    hints: dict[str, Any] = {}
    for owner in _parts(method):
        hints |= get_type_hints(owner.__init__ if inspect.isclass(owner) else owner)
    rows = []
    for name, default in method.settings().items():
        shown = "none" if default is None else str(default).lower()
        rows.append((f"`method.{name}`", f"`{shown}`", _allowed(hints[name])))
    table = Table.of("", ("setting", "default", "allowed"), rows)
    return "\n\n".join([pipe_table(table), *_common(method), *_documented(method)])


def _common(method: Method) -> list[str]:
    """A paragraph on the settings that all rules share, if it has any."""
    names = [name for name in method.settings() if name in _COMMON and issubclass(method.adapter, Rule)]
    return [" ".join(_COMMON[name] for name in names)] if names else []


def _parts(method: Method) -> list[Any]:
    return [part for part in (method.adapter, method.meta_gradient, method.network) if part is not identity]


def _documented(method: Method) -> Iterator[str]:
    for part in _parts(method):
        text = _without_examples(inspect.getdoc(part) or "")
        if any(f"`{name}" in text for name in method.settings()):
            yield f"`{part.__name__}`: {text}"


def _without_examples(docstring: str) -> str:
    """A docstring without the lines from `>>>` to the next empty line; the API pages have them."""
    return re.sub(r"^>>>.*?(\n\n|\Z)", "", docstring, flags=re.DOTALL | re.MULTILINE).rstrip()


def explained(method: Method) -> set[str]:
    """The settings that a page explains, in its table or in the text below it."""
    text = "\n".join([*_common(method), *_documented(method), describe_method(method.name)])
    return {name for name in method.settings() if f"`{name}`" in text}


def _allowed(hint: Any) -> str:
    """The allowed values of a setting, by its type."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    names = {bool: "`true`, `false`", int: "integer", float: "number", str: "text", type(None): "`none`"}
    return " or ".join(names[kind] for kind in (get_args(hint) or (hint,)))


@cache
def _tables(folder: Path) -> list[tuple[TableSpec, Results]]:
    """The tables a method may have a row in, those of the paper and all methods in the same time."""
    paper = (table3(), table1(_any), table2(_any))
    found = []
    for spec in (*paper, method_table("glyphs", _any)):
        experiments = spec.experiments()
        names = [experiment.name for experiment in experiments] if spec.equal_time else []
        found.append((spec, read_results(folder, names).in_one_precision(experiments)))
    return found


def _any(data: str) -> bool:
    """Records count whether or not this machine has their data set."""
    return True


def _results(method: Method, folder: Path) -> str:
    rows = []
    for spec, results in _tables(folder):
        for row in spec.rows:
            for column, cell in row.cells.items():
                ours = cell.experiment.tables["method"]["name"] == method.name
                if ours and (found := results.of(cell.experiment)):
                    name = "equal time" if spec.equal_time else row.label
                    level = "" if spec.metric.lower_is_better else f", {found[0].queries}"
                    label = f"{column.replace('MSE', 'sine')}, {name}{level}"
                    value = with_interval(found, spec.metric)
                    rows.append((label, value, cell.printed, _training(found)))
    if not rows:
        return "There are no records of this method in `results/` yet."
    table = Table.of("", ("problem", "result", "the paper", "training"), rows)
    return f"{pipe_table(table)}\n\n{_NOTE}"


def _training(results: list[Result]) -> str:
    """`12,000 iterations, 3 seeds, NVIDIA H200`; times of runs that shared a machine would mean little."""
    seeds = "1 seed" if len(results) == 1 else f"{len(results)} seeds"
    return f"{results[0].iterations:,} iterations, {seeds}, {results[0].device}"


_NOTE = """Accuracy in %, or mean squared error on sine waves, with 95 % intervals over tasks and seeds.
*Batch* and *joint* are [levels of transduction](../concepts.md#transductive-and-inductive).
*The paper* is PAMELA's. [Methods](../methods.md) compares all methods and their times;
[Reproduction](../reproduction.md) says how the numbers were made."""


def main() -> None:
    folder, results = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    pages = {page_name(method): render(method, results) for method in METHODS.values()}
    for old in folder.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
