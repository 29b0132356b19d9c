"""Which texts can name a class."""

from __future__ import annotations

import secrets
import time
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathaware.inference.trained_model import Adapted
from pathaware.serve.limits import Limits, Refused

# Invisible, but part of words in Persian and Hindi, and of some emoji.
_JOINERS = "\u200c\u200d"


def checked_label(text: str, longest: int) -> str:
    """The label as it is kept: trimmed and in Unicode's composed form, so that what looks equal is equal."""
    if len(text) > 8 * longest:  # nothing below has to look at a long text
        raise Refused(422, f"label: more than {longest} characters")
    label = unicodedata.normalize("NFC", text.strip())
    if not label:
        raise Refused(422, "label: empty; a class needs a name")
    if len(label) > longest:
        raise Refused(422, f"label: more than {longest} characters")
    if any(not _allowed(c) for c in label):
        raise Refused(422, "label: control characters are not allowed")
    if all(unicodedata.category(c)[0] in "CZM" for c in label):
        raise Refused(422, "label: nothing in it can be seen")
    if label in (".", ".."):  # no address can end in these: they mean "here" and "one up"
        raise Refused(422, f"label: {label!r} cannot be a name")
    return label


def _allowed(character: str) -> bool:
    """Neither a control character, nor one that turns the direction of text around, nor half of one."""
    kind = unicodedata.category(character)
    return character in _JOINERS or (kind[0] != "C" and kind not in ("Zl", "Zp") and character != "\ufffd")


# What one person has taught so far. It lives in memory only, and is forgotten when they leave.


Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Lesson:
    """What there is to adapt to: `pixels [S, C, size, size]`, `labels [S]` as places in `classes`."""

    classes: tuple[str, ...]
    pixels: Tensor
    labels: Tensor
    version: int


@dataclass
class Session:
    limits: Limits
    pictures: dict[str, tuple[str, Pixels]] = field(default_factory=dict)
    """By id: a label, and pixels `[C, size, size]`."""
    version: int = 0
    """Counts changes of pictures: a network belongs to one version."""
    adapting: bool = False
    touched: float = 0.0
    _network: tuple[int, list[str], Adapted] | None = None
    _network_bytes: int = 0

    @property
    def counts(self) -> Counter[str]:
        """Pictures of each class, in the order in which classes came."""
        return Counter(label for label, _ in self.pictures.values())

    @property
    def adapted(self) -> bool:
        return self._network is not None and self._network[0] == self.version

    def room_for(self, label: str) -> None:
        """An error if there is none for another picture of this class."""
        counts = self.counts
        if len(self.pictures) >= self.limits.pictures:
            raise Refused(409, f"a session holds {self.limits.pictures} pictures; remove one first")
        if label not in counts and len(counts) >= self.limits.classes:
            raise Refused(409, f"a session holds {self.limits.classes} classes; remove one first")
        if counts[label] >= self.limits.pictures_per_class:
            raise Refused(409, f"a class holds {self.limits.pictures_per_class} pictures; remove one first")

    def add(self, label: str, pixels: Pixels) -> str:
        self.room_for(label)
        name = secrets.token_hex(8)
        self.pictures[name] = label, pixels
        self.version += 1
        return name

    def remove(self, name: str) -> None:
        if self.pictures.pop(name, None) is None:
            raise Refused(404, "this session has no such picture")
        self.version += 1

    def remove_label(self, label: str) -> None:
        self._known(label)
        self.pictures = {name: kept for name, kept in self.pictures.items() if kept[0] != label}
        self.version += 1

    def rename(self, label: str, to: str) -> None:
        """Another name for a class; what was learned of it stays."""
        self._known(label)
        if to != label and to in self.counts:
            raise Refused(409, "another class has this name already")
        self.pictures = {n: (to if was == label else was, p) for n, (was, p) in self.pictures.items()}
        if self._network is not None:
            classes = self._network[1]
            classes[:] = [to if name == label else name for name in classes]

    def _known(self, label: str) -> None:
        if label not in self.counts:
            raise Refused(404, "this session has no such class")

    def lesson(self) -> Lesson:
        if self.adapting:
            raise Refused(409, "this session is adapting already")
        classes = tuple(self.counts)
        if len(classes) < 2:
            raise Refused(409, f"at least 2 classes with pictures are needed, here are {len(classes)}")
        pixels = torch.from_numpy(np.stack([p for _, p in self.pictures.values()]))
        labels = torch.tensor([classes.index(label) for label, _ in self.pictures.values()])
        return Lesson(classes, pixels, labels, self.version)

    def learned(self, lesson: Lesson, network: Adapted) -> None:
        if lesson.version != self.version or lesson.classes != tuple(self.counts):
            raise Refused(409, "classes or pictures changed while the model adapted; adapt again")
        self._network = lesson.version, list(lesson.classes), network
        self._network_bytes = network_bytes(network)

    def network(self) -> tuple[list[str], Adapted]:
        if self._network is None:
            raise Refused(409, "the model has not adapted to these classes yet; adapt first")
        if not self.adapted:
            raise Refused(409, "pictures changed since the model adapted; adapt again")
        return self._network[1], self._network[2]

    @property
    def kept_bytes(self) -> int:
        _, one = next(iter(self.pictures.values()), ("", np.zeros(0, np.uint8)))  # all are of one size
        return len(self.pictures) * one.nbytes + self._network_bytes


def network_bytes(network: Adapted) -> int:
    return sum(p.nbytes for p in network.network.parameters())


class Sessions:
    """All there are, by an unguessable name."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self) -> str:
        self.forget_idle()
        if len(self) >= self._limits.sessions:
            raise Refused(503, "the server has as many sessions as it can hold; try again later", retry=60)
        token = secrets.token_urlsafe(24)
        self._sessions[token] = Session(self._limits, touched=self._clock())
        return token

    def get(self, token: str) -> Session:
        self.forget_idle()
        session = self._sessions.get(token)
        if session is None:
            idle = f"{self._limits.forget_minutes:g} minutes without a request"
            raise Refused(404, f"no such session; one is forgotten after {idle}")
        session.touched = self._clock()
        return session

    def end(self, token: str) -> None:
        self.get(token)
        del self._sessions[token]

    def forget_idle(self) -> None:
        oldest = self._clock() - 60 * self._limits.forget_minutes
        idle = [t for t, s in self._sessions.items() if s.touched < oldest and not s.adapting]
        for token in idle:
            del self._sessions[token]

    def room_for(self, more: int) -> None:
        """An error if so many bytes would be too many."""
        if sum(s.kept_bytes for s in self._sessions.values()) + more > self._limits.kept_bytes:
            raise Refused(503, "the server holds as many pictures as it can; try again later", retry=60)
