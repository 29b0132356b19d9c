"""Reads the records in `results/`, and packs new ones.

    python -m pathaware_research.records pack results/new

`results/README.md` describes the files. Runs, sweeps and `pathaware evaluate --record` write a JSON file per
evaluated run. Readers take such files beside packed ones; `pack` moves them into the file of their study.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.sweep.run_store import PlannedRun
from pathaware.training.provenance import task_values
from pathaware_research.experiments import Results, RunStore, usual_result

Record = dict[str, Any]
RESULTS = Path("results")
VALUES = "task_values"
"""Key of the metric of every task: a tensor in packed records, text in single files."""
VALUES_OF = "values_of"
"""Key of the number of queries, in lines of runs whose accuracies are stored as counts of right answers."""
STUDIES = {
    "recipe": "recipe-.*",
    "cross-domain": ".*-on-.*",
    "ablation": "(.*-)?ablation-.*",
    "additions": "additions-.*",
    "inner-steps": "inner-steps-.*",
    "methods": "(methods|mann)-.*",
    "more-seeds": "more-.*",
    "shipped": "shipped-.*",
    "tables-cifar-fs": "cifar-fs-.*",
    "tables-further": "(fc100|omniglot)-.*",
    "tables-miniimagenet": "miniimagenet-.*",
    "tables-sine": "sine-.*",
}
"""The study of a run by its name; the first that matches counts. Readings say what they are themselves."""
READINGS = "readings-images"
APART = ("cross-domain", "more-seeds", READINGS, "recipe")
"""Studies whose runs are in no table of methods: trained or evaluated in another way, or of further seeds."""


class Records(Mapping[str, Record]):
    """The packed runs of one study by name: `Records("recipe")["recipe-sine-k5-maml-60000-seed0"]`.

    A study without a file has no runs.
    """

    def __init__(self, study: str, results: Path = RESULTS) -> None:
        path, tasks = _files(study, results)
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            lines = [json.loads(line) for line in text.splitlines()]
            values = load_file(tasks) if tasks.exists() else {}
        except (OSError, ValueError, SafetensorError) as error:
            raise UsageError(f"{path} cannot be read ({error})", field="results") from None
        self._rows: dict[str, Record] = {line.pop("name"): line for line in lines}
        for name in self._rows.keys() & values.keys():
            queries = self._rows[name].pop(VALUES_OF, None)
            self._rows[name][VALUES] = values[name].float() / queries if queries else values[name]

    def __getitem__(self, name: str) -> Record:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def named(self, pattern: str) -> dict[str, Record]:
        """The runs whose names match a regular expression."""
        return {name: record for name, record in self.items() if re.fullmatch(pattern, name)}


def _files(study: str, results: Path) -> tuple[Path, Path]:
    return results / "runs" / f"{study}.jsonl", results / "tasks" / f"{study}.safetensors"


def studies(results: Path) -> list[str]:
    """The names of the studies in a folder."""
    return sorted(path.stem for path in (results / "runs").glob("*.jsonl"))


def read_records(results: Path, *, apart: bool = False) -> Iterator[tuple[str, str, Record]]:
    """Study, name and record of every packed run, also those that are `APART` if asked for."""
    for study in studies(results):
        if apart or study not in APART:
            for name, record in Records(study, results).items():
                yield study, name, record


def read_results(results: Path, names: Sequence[str] = ()) -> Results:
    """The results that count in tables, of all experiments or those with certain names, packed or not."""
    wanted = "|".join(map(re.escape, names))
    found = {
        name: result
        for _, name, record in read_records(results)
        if (not names or re.fullmatch(rf"({wanted})-[0-9].*-seed[0-9].*", name))
        and (result := usual_result(record))
    }
    in_order = [found[name] for name in sorted(found, key=lambda name: f"{name}.json")]
    return Results([*in_order, *Results.read(results, names).found])


@dataclass(frozen=True)
class RecordStore(RunStore):
    """A store of runs that also finds the packed records of its folder of records."""

    def results(self, experiments: Sequence[Any] = ()) -> Results:
        return read_results(self.results_folder, [experiment.name for experiment in experiments])

    def _record(self, planned: PlannedRun) -> Record:
        return super()._record(planned) or self.packed.get(self.record_path(planned).stem, {})

    @cached_property
    def packed(self) -> dict[str, Record]:
        """The packed records of all studies by name."""
        return {name: record for _, name, record in read_records(self.results_folder, apart=True)}


def measurements(results: Path, pattern: str) -> dict[str, Record]:
    """Records that are not of an evaluated run, by name: `measurements(results, "timings/bench-*")`."""
    paths = sorted(results.glob(f"{pattern}.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def measurement(results: Path, name: str) -> Record:
    """One such record: `measurement(results, "timings/bench-cpu")`."""
    (found,) = measurements(results, name).values()
    return found


def is_run(record: Any) -> bool:
    """True for the record of an evaluated run."""
    return isinstance(record, dict) and {"config", "result", VALUES} <= record.keys()


def study_of(name: str, record: Mapping[str, Any]) -> str:
    """The study that a run belongs to."""
    if "reading" in record:
        return READINGS
    found = [study for study, pattern in STUDIES.items() if re.fullmatch(pattern, name)]
    if not found:
        raise UsageError(f"no study has runs with names like {name}; choose one with --study", field="study")
    return found[0]


def pack(folder: Path, results: Path = RESULTS, study: str | None = None) -> dict[str, list[str]]:
    """Move the single records of a folder into their studies, in place of those with the same names.

    Returns the names of the runs by study. Other files stay where they are.
    """
    paths, new = [], dict[str, dict[str, Record]]()
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if is_run(record):
            new.setdefault(study or study_of(path.stem, record), {})[path.stem] = record
            paths.append(path)
    for name, records in new.items():
        write(name, {**Records(name, results), **records}, results)
    for path in paths:
        path.unlink()
    return {name: list(records) for name, records in new.items()}


def write(study: str, records: Mapping[str, Record], results: Path) -> None:
    """Write the files of a study. Values come first, so that there is no line without them."""
    lines, values = [], dict[str, Tensor]()
    for name in sorted(records):
        record = {key: value for key, value in records[name].items() if key != VALUES}
        found = task_values(records[name])
        assert found is not None
        values[name], queries = _counts(found, record)
        lines.append({"name": name, **({VALUES_OF: queries} if queries else {}), **record})
    path, tasks = _files(study, results)
    text = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines)
    for file in (tasks, path):
        file.parent.mkdir(parents=True, exist_ok=True)
    drafts = [file.with_name(f"{file.name}.new") for file in (tasks, path)]
    save_file(values, drafts[0])
    drafts[1].write_text("".join(text), encoding="utf-8")
    for draft, file in zip(drafts, (tasks, path), strict=True):
        os.replace(draft, file)


def _counts(values: Tensor, record: Record) -> tuple[Tensor, int]:
    """Accuracies as counts of right answers, a byte each, and the number of queries, if no bit is lost."""
    problem = record["config"]["problem"]
    ways = record.get("evaluated", {}).get("ways", problem.get("ways", 0))
    queries = ways * problem.get("queries", 0)
    counts = (values.double() * queries).round()
    if 0 < queries < 256 and bool(((counts >= 0) & (counts < 256)).all()):
        small = counts.to(torch.uint8)
        if torch.equal(small.float() / queries, values):
            return small, queries
    return values, 0


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=["pack"])
    parser.add_argument("folder", type=Path, help="folder of new records, a JSON file per run")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of packed records")
    parser.add_argument("--study", help="by default what the names of the runs say")
    options = parser.parse_args(None if arguments is None else list(arguments))
    for study, names in pack(options.folder, options.results, options.study).items():
        print(f"{study}: {', '.join(names)}")


if __name__ == "__main__":
    main()
