"""`pathaware report`: one HTML file for one run or several."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from pathaware import Pamela
from pathaware.models import mlp
from pathaware.report.figures import coefficients, training_curves
from pathaware.report.run_report import compare, differences
from pathaware.report.style import labels, run_styles
from pathaware.training.config import Config
from pathaware.training.run_files import METRICS
from pathaware.training.run_folder import Run
from pathaware.training.train import train
from tests.calling import done, refused

VOID = {"meta", "img"}


class Parser(HTMLParser):
    """Fails if elements are not nested properly; collects all tags and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def values(self, name: str) -> list[str]:
        return [value for _, attributes in self.seen if (value := attributes.get(name)) is not None]

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.seen)


def tiny(folder: Path, method: str, *, shots: int = 10, seed: int = 0, **training: int) -> Run:
    config = Config.from_dict(
        {
            "problem": {"name": "sine", "shots": shots, "points": 20},
            "method": {"name": method},
            "training": {"iterations": 4, "tasks": 2, "seed": seed, **training},
        }
    )
    return train(config, folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Run]:
    root = tmp_path_factory.mktemp("runs")
    return {
        "pamela": tiny(root / "pamela", "pamela"),
        "again": tiny(root / "again", "pamela", seed=1),
        "maml": tiny(root / "maml", "maml", validate=2, validation_tasks=3),
        "five": tiny(root / "five", "maml", shots=5),
    }


def report(out: Path | None, *chosen: Run) -> str:
    where = ["--out", str(out)] if out else []
    done("report", *(run.folder for run in chosen), *where, "--tasks", "5")
    return (out or chosen[0].folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def everything(runs, tmp_path_factory) -> str:
    return report(tmp_path_factory.mktemp("report") / "all.html", *runs.values())


def test_a_report_is_self_contained_and_well_formed(everything):
    parsed = Parser(everything)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in parsed.values("src"))
    outside = [link for link in parsed.values("href") if not link.startswith("#")]
    assert outside == ["https://arxiv.org/abs/2010.09291"]
    assert not re.search(r"@import|url\(|<script|<link", everything)


def test_runs_on_different_problems_have_sections_and_a_table_of_contents(everything):
    parsed = Parser(everything)
    links = [link[1:] for link in parsed.values("href") if link.startswith("#")]
    assert len(links) == 2
    assert [name for name in parsed.values("id") if name in links] == links
    assert parsed.count("details") == 4


def test_one_run_needs_no_table_of_contents_and_no_table_of_differences(runs):
    page = report(None, runs["again"])
    parsed = Parser(page)
    assert parsed.count("nav") == 0
    assert parsed.count("figure") == 4
    assert '<th scope="col">setting</th>' not in page
    assert 'class="best"' not in page
    assert "0.41 ± 0.04" in page
    assert "5 new tasks of the test split" in page
    assert "q_granularity = &#34;filter&#34;" in page


def test_differences_lists_the_settings_that_differ(runs):
    table = differences([runs["pamela"], runs["again"]])
    assert [row.cells for row in table.rows] == [("training.seed", "0", "1")]
    between = {row.cells[0]: row.cells[1:] for row in differences([runs["pamela"], runs["maml"]]).rows}
    assert between["method.skip"] == ("2", "–")
    assert "training.tasks" not in between


def test_runs_of_one_method_have_distinct_labels_and_colours(runs):
    assert labels([runs["pamela"], runs["maml"]]) == ["pamela", "maml"]
    both = run_styles([runs["pamela"], runs["again"]])
    assert [label for label, _ in both] == ["pamela", "again"]
    assert both[0][1] != both[1][1]


def test_the_best_run_and_a_run_without_guard_are_marked(runs, tmp_path):
    unguarded = tiny(tmp_path / "free", "pamela", guard=False)
    result = compare([runs["maml"], unguarded], tasks=5)
    after = [float(row.cells[2].split()[0]) for row in result.results.rows]
    assert [row.emphasis for row in result.results.rows] == [value == min(after) for value in after]
    assert result.results.rows[1].cells[4] == "no guard"
    assert [row.cells[1] for row in result.steps.rows] == [row.cells[1] for row in result.results.rows]


def test_training_curves_show_validation_if_there_was_any(runs):
    for chosen, panels in (([runs["pamela"]], 2), ([runs["pamela"], runs["maml"]], 3)):
        figure = training_curves(chosen)
        assert len(figure.axes) == panels
        plt.close(figure)
    taken = figure.axes[2].lines
    assert [list(line.get_xdata()) for line in taken] == [[], [2, 4]]


@pytest.mark.parametrize(
    ("settings", "panels"),
    [
        (
            {"skip": 2},
            {
                "mean |Q|": ["0", "1", "2", "3", "4"],
                "mean Q": ["0", "1", "2", "3", "4"],
                "mean P": ["2", "4"],
            },
        ),
        ({"skip": None, "q": "shared"}, {"mean |Q|": ["all"], "mean Q": ["all"]}),
    ],
)
def test_learned_coefficients_are_shown_at_the_steps_that_use_them(settings, panels):
    figure = coefficients(Pamela(mlp(1, (6, 6), 1), 5, **settings))
    shown = {ax.get_title(loc="left"): [t.get_text() for t in ax.get_xticklabels()] for ax in figure.axes}
    assert {title: steps for title, steps in shown.items() if title} == panels
    plt.close(figure)


def test_invalid_arguments_are_one_line_errors_before_any_evaluation(runs, tmp_path):
    good = str(runs["pamela"].folder)
    assert "is not a run folder" in refused("report", str(tmp_path / "nowhere"))
    assert "--out: " in refused("report", good, "--out", str(tmp_path))
    assert "--out: " in refused("report", good, "--out", str(tmp_path / "none" / "r.html"))
    assert "tasks: 0" in refused("report", good, "--tasks", "0")
    assert not (runs["pamela"].folder / "report.html").exists()


def test_an_unfinished_or_damaged_run_is_refused(tmp_path):
    run = tiny(tmp_path / "run", "maml", validate=2, validation_tasks=3)
    metrics = run.folder / METRICS
    lines = [line for line in metrics.read_text().splitlines() if json.loads(line)["iteration"] < 4]
    metrics.write_text("\n".join(lines) + "\n")
    assert "is not finished" in refused("report", str(run.folder))
    metrics.write_text("\n".join([*lines, '{"iteration": 4, "lo']))
    assert "is not finished" in refused("report", str(run.folder))  # its last line was cut off
    metrics.write_text("\n".join([*lines, '{"iteration": 4, "lo', ""]))
    assert "metrics.jsonl is damaged (line" in refused("report", str(run.folder))
