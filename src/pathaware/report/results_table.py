"""The README's tables, rendered from the files in `results/`.

python -m pathaware.report.results_table README.md results
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pathaware.report.paper import IMAGE_ACCURACY, SINE_MSE

BEGIN, END = "<!-- results: made by `make tables` -->", "<!-- end of results -->"


def records(folder: Path) -> list[dict[str, Any]]:
    """Every result of a run, in the order of file names."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [record for record in found if "result" in record]


def sine_table(found: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| sine waves, K points | method | seed | MSE | worst task | put back | the paper | training |",
        "|---|---|---|---|---|---|---|---|",
    ]
    chosen = [r for r in found if r["config"]["problem"]["name"] == "sine"]
    order = {"maml": 0, "meta-sgd": 1, "pamela": 2}
    key = [(r["config"]["problem"]["shots"], order[r["config"]["method"]["name"]]) for r in chosen]
    for (shots, _), record in sorted(zip(key, chosen, strict=True), key=lambda pair: pair[0]):
        result, method = record["result"], record["config"]["method"]["name"]
        paper = SINE_MSE[shots][method]
        lines.append(
            f"| {shots} | {method} | {record['config']['training']['seed']} "
            f"| {result['mse']:.4f} ± {result['mse_ci95']:.4f} | {result['mse_max']:.1f} "
            f"| {100 * result['strayed']:.2f} % | {paper[0]:.2f} ± {paper[1]:.2f} "
            f"| {record['config']['training']['iterations']:,} iterations |"
        )
    return lines


def image_table(found: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| images | method | accuracy, % | batch norm of queries | test tasks | the paper | training |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in found:
        problem, result = record["config"]["problem"], record["result"]
        if problem["name"] != "classification":
            continue
        method = record["config"]["method"]["name"]
        paper = IMAGE_ACCURACY.get((problem["data"], problem["shots"]), {}).get(method, "–")
        kind = "transductive" if result["transductive"] else "inductive"
        lines.append(
            f"| {problem['data']}, {problem['ways']}-way {problem['shots']}-shot | {method} "
            f"| {100 * result['accuracy']:.2f} ± {100 * result['accuracy_ci95']:.2f} | {kind} "
            f"| {result['tasks']:,} | {paper if result['transductive'] else '–'} "
            f"| {record['config']['training']['iterations']:,} iterations, "
            f"{record['training_seconds'] / 60:.1f} min, {record['environment']['device']} |"
        )
    return lines


def render(folder: Path) -> str:
    found = records(folder)
    return "\n".join([BEGIN, *sine_table(found), "", *image_table(found), END])


def replaced(text: str, tables: str) -> str:
    """`text` with its tables exchanged for these."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + tables + after


if __name__ == "__main__":
    readme, results = Path(sys.argv[1]), Path(sys.argv[2])
    readme.write_text(replaced(readme.read_text(encoding="utf-8"), render(results)), encoding="utf-8")
