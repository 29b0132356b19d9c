"""Heads on frozen features: the one that ships, and simple classifiers beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.inference.learning import FEATURE_HEAD
from pathaware.methods.proto_pamela import ProtoPamela
from pathaware.models.efficientnet_lite import FEATURES
from pathaware_research.studies.photos.tasks import FeatureSet, varied_task

HEAD = {name: value for name, value in FEATURE_HEAD.items() if name != "name"}
"""The settings of the head that ships."""

Predict = Callable[[Episodes], Tensor]
"""Logits `[T, Q, ways]` of the queries of tasks."""


def new_head(**settings: Any) -> ProtoPamela:
    """A head for features of the frozen network, by default the one that ships."""
    return ProtoPamela(nn.Sequential(nn.Linear(FEATURES, 2)), **{**HEAD, **settings})


def with_head(head: ProtoPamela) -> Predict:
    """Predictions of this head."""

    def predict(task: Episodes) -> Tensor:
        head.outputs = int(task.support_y.max()) + 1
        return head.predict(head.fit(task.support_x, task.support_y), task.query_x)

    return predict


def nearest_mean(task: Episodes) -> Tensor:
    """Cosine similarity to the class means of unit features, times 10."""
    x, q = (F.normalize(each, dim=-1) for each in (task.support_x, task.query_x))
    y = F.one_hot(task.support_y).to(x)
    return 10 * q @ F.normalize(y.mT @ x, dim=-1).mT


def logistic(penalty: float) -> Predict:
    """Logistic regression with this C, on unit features."""

    def predict(task: Episodes) -> Tensor:
        return torch.stack([_fitted(x, y, q, penalty) for x, y, q in _by_task(task)])

    return predict


def chosen_logistic(penalties: Sequence[float] = (0.1, 1.0, 10.0, 100.0)) -> Predict:
    """Logistic regression with the C that cross-validation of the support set prefers; 10 for one image."""
    from sklearn.model_selection import StratifiedKFold

    def predict(task: Episodes) -> Tensor:
        found = []
        for x, y, q in _by_task(task):
            folds, right = min(5, int(y.bincount().min())), dict.fromkeys(penalties, 0.0)
            if folds > 1:
                for rest, held in StratifiedKFold(folds, shuffle=True, random_state=0).split(x, y):
                    for c in penalties:
                        guess = _fitted(x[rest], y[rest], x[held], c).log_softmax(-1)
                        right[c] += float(guess.gather(1, y[held][:, None]).sum())
                best = max(right, key=lambda c: right[c])
            else:
                best = 10.0
            found.append(_fitted(x, y, q, best))
        return torch.stack(found)

    return predict


def _by_task(task: Episodes) -> list[tuple[Tensor, Tensor, Tensor]]:
    return list(zip(task.support_x, task.support_y, task.query_x, strict=True))


def _fitted(x: Tensor, y: Tensor, q: Tensor, penalty: float) -> Tensor:
    from sklearn.linear_model import LogisticRegression

    x, q = (F.normalize(each, dim=-1) for each in (x, q))
    solver = LogisticRegression(C=penalty, max_iter=1000).fit(x.numpy(), y.numpy())
    scores = torch.from_numpy(solver.decision_function(q.numpy())).float()
    return torch.stack([-scores / 2, scores / 2], -1) if scores.ndim == 1 else scores


def train(
    sets: Sequence[FeatureSet],
    *,
    iterations: int = 250,
    tasks: int = 4,
    rate: float = 0.004,
    seed: int = 0,
    **settings: Any,
) -> ProtoPamela:
    """Meta-train a head on varied tasks of these sets, each set as often as the others."""
    torch.manual_seed(seed)
    head = new_head(**settings)
    optimizer = torch.optim.Adam(head.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    random, predict = torch.Generator().manual_seed(seed), with_head(head)
    recent = 0.0
    for iteration in range(iterations):
        optimizer.zero_grad()
        for i in range(tasks):
            task = varied_task(sets[(iteration * tasks + i) % len(sets)], random)
            loss = F.cross_entropy(predict(task)[0], task.query_y[0])
            (loss / tasks).backward()
            recent += loss.item() / tasks
        nn.utils.clip_grad_norm_(head.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        if (iteration + 1) % 50 == 0:
            print(f"{iteration + 1}: {recent / 50:.4f}", flush=True)
            recent = 0.0
    return head.eval().requires_grad_(False)
