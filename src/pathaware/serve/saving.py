"""Classifiers that visitors save: as a download, or in a folder of the server's choice."""

from __future__ import annotations

import tempfile
import zipfile
from collections import Counter
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Response

from pathaware.core.writing import draft_folder
from pathaware.inference.learning import Learned, save_classifier
from pathaware.inference.trained_model import AdaptedClassifier, SupportSet, TrainedModel
from pathaware.serve.api_error import ApiError
from pathaware.serve.sessions import Sessions
from pathaware.serve.worker import Worker


def add_saving(
    app: FastAPI, sessions: Sessions, model: TrainedModel, worker: Worker, save_to: Path | None
) -> None:
    """Add the request that saves what a session has learned, in the format of `pathaware learn`."""

    @app.post("/api/sessions/{session}/save", response_model=None)
    async def save(session: str, there: bool = False) -> Response | dict[str, Any]:
        found = sessions.get(session)
        learned, (names, adapted) = found.learned(), found.classifier()
        support = SupportSet(tuple(names), learned.pixels, learned.labels)
        if not there:
            content = await worker.run(_zipped, model, support, adapted)
            return Response(content, media_type="application/zip")
        if save_to is None:
            raise ApiError(409, "this server saves nothing; start it with --save-to FOLDER")
        folder = save_to / f"classifier-{datetime.now():%Y-%m-%d-%H%M%S-%f}"
        await worker.run(_save, model, support, adapted, folder)
        return {"folder": str(folder)}


def _save(model: TrainedModel, support: SupportSet, adapted: AdaptedClassifier, folder: Path) -> None:
    counts, names = Counter[int](), []
    for label in support.labels.tolist():
        counts[label] += 1
        names.append(f"{support.classes[label]} {counts[label]}")
    folds = torch.full_like(support.labels, -1)  # no accuracy was measured
    save_classifier(Learned(support, tuple(names), adapted, folds, None, None), model, folder)


def _zipped(model: TrainedModel, support: SupportSet, adapted: AdaptedClassifier) -> bytes:
    """Return a zip file of a saved classifier's files."""
    content = BytesIO()
    with draft_folder(Path(tempfile.gettempdir())) as place, zipfile.ZipFile(content, "w") as packed:
        folder = place / "classifier"
        _save(model, support, adapted, folder)
        for path in sorted(folder.iterdir()):
            packed.write(path, path.name)
    return content.getvalue()
