"""The README's tables, rendered from the files in `results/`.

python -m pathaware.report.results_table README.md results
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pathaware.report.paper import image_accuracy, sine_mse
from pathaware.report.tables.markdown import pipe_table
from pathaware.report.tables.model import NOTHING, Row, Table

BEGIN, END = "<!-- results: made by `make tables` -->", "<!-- end of results -->"


def records(folder: Path) -> list[dict[str, Any]]:
    """Every result of a run, in the order of file names."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [record for record in found if "result" in record]


def sine_table(found: list[dict[str, Any]]) -> Table:
    chosen = [r for r in found if r["config"]["problem"]["name"] == "sine"]
    order = {"maml": 0, "meta-sgd": 1, "pamela": 2}
    chosen.sort(key=lambda r: (r["config"]["problem"]["shots"], order[r["config"]["method"]["name"]]))
    rows = []
    for record in chosen:
        result, method, training = (
            record["result"],
            record["config"]["method"]["name"],
            record["config"]["training"],
        )
        shots = record["config"]["problem"]["shots"]
        cells = (
            str(shots),
            method,
            str(training["seed"]),
            f"{result['mse']:.4f} ± {result['mse_ci95']:.4f}",
            f"{result['mse_max']:.1f}",
            f"{100 * result['strayed']:.2f} %",
            sine_mse(shots, method),
            f"{training['iterations']:,} iterations",
        )
        rows.append(Row(cells, group=str(shots)))
    header = (
        "sine waves, K points",
        "method",
        "seed",
        "MSE",
        "worst task",
        "put back",
        "the paper",
        "training",
    )
    return Table("Sine regression: mean squared error after adaptation", header, rows)


def image_table(found: list[dict[str, Any]]) -> Table:
    rows = []
    for record in found:
        problem, result = record["config"]["problem"], record["result"]
        if problem["name"] != "classification":
            continue
        method = record["config"]["method"]["name"]
        paper = image_accuracy(problem["data"], problem["ways"], problem["shots"], method)
        cells = (
            f"{problem['data']}, {problem['ways']}-way {problem['shots']}-shot",
            method,
            f"{100 * result['accuracy']:.2f} ± {100 * result['accuracy_ci95']:.2f}",
            "transductive" if result["transductive"] else "inductive",
            f"{result['tasks']:,}",
            paper if result["transductive"] else NOTHING,
            f"{record['config']['training']['iterations']:,} iterations, "
            f"{record['training_seconds'] / 60:.1f} min, {record['environment']['device']}",
        )
        rows.append(Row(cells, group=problem["data"]))
    header = (
        "images",
        "method",
        "accuracy, %",
        "batch norm of queries",
        "test tasks",
        "the paper",
        "training",
    )
    return Table("Few-shot classification: accuracy after adaptation", header, rows)


def render(folder: Path) -> str:
    found = records(folder)
    return "\n".join([BEGIN, pipe_table(sine_table(found)), "", pipe_table(image_table(found)), END])


def replaced(text: str, tables: str) -> str:
    """`text` with its tables exchanged for these."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + tables + after


if __name__ == "__main__":
    readme, results = Path(sys.argv[1]), Path(sys.argv[2])
    readme.write_text(replaced(readme.read_text(encoding="utf-8"), render(results)), encoding="utf-8")
