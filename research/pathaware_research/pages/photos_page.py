"""Tables of docs/photos.md: the model `photos` beside simple classifiers, and how sure it is."""

from __future__ import annotations

from pathlib import Path

from pathaware.training.tables import Row, Table, pipe_table
from pathaware_research.records import measurement


def blocks(folder: Path) -> dict[str, str]:
    """Accuracy of the model `photos` by data, ways and shots, beside simple classifiers of its features."""
    record = measurement(folder, "use/photos")
    titles = {
        "photos": "`photos`",
        "nearest-mean": "nearest class mean",
        "logistic": "logistic regression, C = 1",
        "logistic-chosen": f"C = {record['penalty_chosen']:g}",
    }
    names = {"miniimagenet": "miniImageNet", "cifar-fs": "CIFAR-FS", "grocery": "Grocery Store"}
    rows, leads = [], []
    for found in record["rows"]:
        size = names[found["data"]], str(found["ways"]), str(found["shots"])
        cells = (f"{100 * found[k]['accuracy']:.2f} ± {100 * found[k]['accuracy_ci95']:.2f}" for k in titles)
        rows.append(Row((*size, *cells)))
        ahead = (found["lead"][name] for name in titles if name != "photos")
        leads.append(Row((*size, *(f"{100 * v['mean']:+.2f} ± {100 * v['ci95']:.2f}" for v in ahead))))
    header = "test classes of", "ways", "shots"
    return {
        "photos": pipe_table(Table("", (*header, *titles.values()), rows)),
        "lead": pipe_table(Table("", (*header, *list(titles.values())[1:]), leads)),
        "fixed": _fixed(folder, names),
        "confidence": _confidence(folder, names),
    }


def _fixed(folder: Path, names: dict[str, str]) -> str:
    """`photos` beside models that were meta-trained for one number of classes and of images only."""
    rows = []
    for found in measurement(folder, "use/photos-fixed")["rows"]:
        cells = (
            f"{100 * found[key]['mean']:.2f} ± {100 * found[key]['ci95']:.2f}"
            for key in ("photos", "for this size only", "difference")
        )
        rows.append(Row((names[found["data"]], str(found["ways"]), str(found["shots"]), *cells)))
    header = ("test classes of", "ways", "shots", "`photos`", "trained for this size only", "difference")
    return pipe_table(Table("", header, rows))


def _confidence(folder: Path, names: dict[str, str]) -> str:
    """Calibration error of `photos` before and after, and the shares that it refuses as unknown."""
    rows = []
    for found in measurement(folder, "use/photos-calibration")["rows"]:
        errors = (f"{100 * found[key]:.1f}" for key in ("calibration_error", "calibrated_error"))
        refused = (
            ", ".join(f"{100 * r[k]['mean']:.1f} ± {100 * r[k]['ci95']:.1f}" for k in ("known", "foreign"))
            for r in found["refused"]
            if r["asked"] == 0.05
        )
        cells = (f"{found['temperature']:.2f}", *errors, f"{found['auroc']:.3f}", *refused)
        rows.append(Row((names[found["data"]], str(found["ways"]), str(found["shots"]), *cells)))
    header = (
        *("test classes of", "ways", "shots", "temperature"),
        *("calibration error before, %", "after, %", "AUROC", "refused at 5 %: known, foreign, %"),
    )
    return pipe_table(Table("", header, rows))
