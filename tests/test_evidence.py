"""Documents print only numbers that records support, and compare only what can be compared."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import torch

from pathaware.methods import METHODS
from pathaware.report.style import save
from pathaware.training.tables import NOTHING
from pathaware_research.pages import convergence, document_numbers, page_figures
from pathaware_research.pages.document_numbers import EXCEPTIONS, Evidence, measured, unsupported
from pathaware_research.pages.documents import compared_problems
from pathaware_research.pages.evidence_page import difference, image_claims_table
from pathaware_research.pages.methods_page import glyph_ranking, method_times
from pathaware_research.records import Records, read_results

ROOT = Path(__file__).parents[1]


def test_every_measured_number_has_a_record_or_a_stated_exception():
    assert not unsupported(ROOT), "see research/pathaware_research/pages/document_numbers.toml"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("PAMELA reaches 76.3 on it.", ["76.3"]),
        ("89 % of the answers are right", ["89"]),
        ("it takes 12 ms, or 1,200 seconds", ["12", "1,200"]),
        ("three times 5 images of 84×84, 60,000 iterations", []),
        ("`--rate 0.01` and [a link](page-1.5.md)", []),
        ("```\n0.5 ms\n```", []),
        ("<!-- table: made by `make tables` -->\n| 12.5 |\n<!-- end of table -->", []),
        ("| a hand-made table | 12.5 |", ["12.5"]),
        ("about .63 and 5 of 7", [".63"]),
    ],
)
def test_what_counts_as_a_measured_number(text, found):
    assert list(measured(text)) == found


def test_a_number_without_a_record_is_found(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results/one.json").write_text('{"accuracy": 0.7231, "config": {"rate": 0.4321}}')
    (tmp_path / "docs/page.md").write_text("It is 72.3 % (`results/one.json`), not 72.4 % or 0.4321.")
    (tmp_path / "README.md").write_text("It is 72.3 %.")
    exceptions = tmp_path / "exceptions.toml"
    monkeypatch.setattr(document_numbers, "EXCEPTIONS", exceptions)
    nothing = "sources = {}\ntables = {}\neverywhere = {}\n"
    exceptions.write_text(nothing)
    assert unsupported(tmp_path) == {"README.md": ["72.3"], "docs/page.md": ["72.4", "0.4321"]}
    exceptions.write_text(nothing + '["docs/page.md"]\n"72.4" = "a reason"\n"0.4321" = "another"\n')
    assert unsupported(tmp_path) == {"README.md": ["72.3"]}


def test_a_source_that_does_not_exist_is_an_error(tmp_path):
    (tmp_path / "README.md").write_text("See `results/gone.json`.")
    with pytest.raises(ValueError, match=r"README\.md names results/gone\.json, which does not exist"):
        Evidence(tmp_path, tmp_path / "README.md")


def test_every_exception_has_a_reason():
    stated = tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))
    for name, table in stated.items():
        if name != "sources":
            assert all(isinstance(reason, str) and len(reason) > 5 for reason in table.values()), name


def test_methods_in_a_row_of_the_readme_were_trained_and_evaluated_under_equal_conditions():
    rows = [each.compared() for each in compared_problems(read_results(ROOT / "results"))]
    assert sum(bool(maml) for _, _, maml in rows) >= 7
    for _, pamela, maml in rows:
        assert [result.seed for result in maml] == [result.seed for result in pamela]
        assert [result.conditions for result in maml] == [result.conditions for result in pamela]
        assert len({str(result.conditions) for result in maml}) <= 1


def test_a_claim_is_judged_by_differences_on_the_same_tasks():
    one = torch.tensor([-0.4, -0.2, -0.1, 0.1], dtype=torch.float64)
    mean, median, share, seeds = difference([one, one])
    assert mean.startswith("-0.1500 (")
    assert (median, share, seeds) == ("-0.1500", "75 %", "-0.1500, -0.1500")
    apart, *_ = difference([one, one + 1])  # seeds that disagree: nothing is known
    low, high = (float(end) for end in apart.partition("(")[2].rstrip(")").split(" to "))
    assert low < 0 < high
    assert difference([])[0] == "not run yet"


@pytest.mark.parametrize("workload", ["glyphs", "cifar-fs"])
def test_every_method_with_a_result_has_been_timed(workload):
    times = method_times(ROOT / "results", workload)
    shown = {
        row.cells[0].removesuffix("-direct")
        for row in glyph_ranking(ROOT / "results").rows
        if row.cells[-2] != NOTHING
    }
    assert len(shown) > 30
    assert shown <= set(times) <= set(METHODS)
    assert times["meta-sgd"]["training_ms"] < times["maml"]["training_ms"]  # one step, not five
    assert times["prototypical"]["adaptation_ms"] < times["maml"]["adaptation_ms"]


def test_curves_are_means_of_the_seeds_of_a_method(tmp_path):
    lines = [
        {
            "name": f"cifar-fs-{method}-5shot-12000-seed{seed}",
            "validation": [[1000 * (i + 1), value] for i, value in enumerate(values)],
        }
        for seed, values in enumerate(([0.2, 0.5], [0.4, 0.7]))
        for method in ("maml", "l-maml")
    ]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/tables-cifar-fs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    ((mean, seeds),) = convergence.curves(tmp_path, "cifar-fs", 5).values()
    assert mean == {1000: pytest.approx(0.3), 2000: pytest.approx(0.6)}
    assert len(seeds) == 2
    assert not convergence.curves(tmp_path, "cifar-fs", 5, 60_000)


def test_figures_of_methods_name_each_in_every_panel(tmp_path):
    figures = dict(page_figures.of_methods(ROOT / "results"))
    assert set(figures) == {"convergence", "methods", "steps"}
    drawn = {name: save(figure, tmp_path / f"{name}.svg").read_text() for name, figure in figures.items()}
    assert drawn["convergence"].count("<!-- CIFAR-FS 5-shot -->") == 2
    for name in ("pamela-direct", "maml++", "r2d2"):
        assert drawn["methods"].count(f"<!-- {name} -->") == 2
    record = Records("tables-miniimagenet", ROOT / "results")["miniimagenet-pamela-20steps-5shot-12000-seed0"]
    lines = {line.get_label(): dict(line.get_xydata()) for line in figures["steps"].axes[1].lines}
    accuracy = 100 * record["result"]["accuracy"]
    assert lines["PAMELA, Q learned directly"][20] == pytest.approx(accuracy)


def test_figures_of_records_have_at_most_two_columns():
    """So that their text is legible on a phone."""
    drawn = dict(page_figures.of_records(ROOT / "results"))
    assert set(drawn) == {"bench-scaling-cpu", "bench-scaling-h200", "online-sine", "online-glyphs"}
    for figure in drawn.values():
        assert all(axes.get_subplotspec().get_gridspec().ncols <= 2 for axes in figure.axes)
        assert figure.get_figwidth() <= 7


def test_a_claim_about_images_is_the_first_row_minus_the_second():
    """On the seeds that both have."""
    found = {row.cells[0]: row.cells for row in image_claims_table(read_results(ROOT / "results")).rows}
    q, maml = (
        Records(study, ROOT / "results")[f"miniimagenet-{name}-12000-seed0"]
        for study, name in (("ablation", "5shot-ablation-q"), ("tables-miniimagenet", "maml-5shot"))
    )
    first = found["Q helps"][4].split(", ")[0]
    assert float(first) == pytest.approx(
        100 * (q["result"]["accuracy"] - maml["result"]["accuracy"]), abs=0.01
    )
    assert found["Q helps"][2] == "+6.60 (cited)"  # 69.71 − 63.11, as printed
