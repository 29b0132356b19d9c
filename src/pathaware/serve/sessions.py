"""Sessions of visitors: their classes and pictures, in memory only, deleted when they leave or are idle."""

from __future__ import annotations

import secrets
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from pathaware.inference.trained_model import AdaptedClassifier, SupportSet
from pathaware.serve.api_error import ApiError
from pathaware.serve.limits import Limits, is_local, network_prefix

Pixels = NDArray[np.uint8]
# Invisible, but part of words in Persian and Hindi, and of some emoji.
_JOINERS = "\u200c\u200d"


def checked_label(text: str, longest: int) -> str:
    """Return a valid label, trimmed and in Unicode's composed form, so that labels that look equal are."""
    # A long text is spared the checks below.
    label = text if len(text) > 8 * longest else unicodedata.normalize("NFC", text.strip())
    if not label:
        raise ApiError(422, "label: empty; a class needs a name")
    if len(label) > longest:
        raise ApiError(422, f"label: more than {longest} characters")
    if any(not _allowed(c) for c in label):
        raise ApiError(422, "label: control characters are not allowed")
    if all(unicodedata.category(c)[0] in "CZM" for c in label):
        raise ApiError(422, "label: has no visible characters")
    if label in (".", ".."):  # the last part of a URL cannot be one of these
        raise ApiError(422, f"label: {label!r} cannot be a name")
    return label


def _allowed(character: str) -> bool:
    """Return False for control characters, marks of text direction and unpaired surrogates."""
    kind = unicodedata.category(character)
    return character in _JOINERS or (kind[0] != "C" and kind not in ("Zl", "Zp") and character != "\ufffd")


UNDOABLE = 20
"""Changes of a session that can be undone."""

Pictures = dict[str, tuple[str, Pixels]]


@dataclass(frozen=True)
class VersionedSupportSet(SupportSet):
    """The support set of a session at one version of its pictures; `names` are their ids."""

    version: int


@dataclass
class Session:
    """The pictures of one visitor, and the classifier adapted to them."""

    limits: Limits
    pictures: Pictures = field(default_factory=dict)
    """Label and pixels `[C, size, size]` by id."""
    unlabelled: dict[str, Pixels] = field(default_factory=dict)
    """Pixels of classified pictures that were kept to suggest which to label next, by id."""
    version: int = 0
    """Number of changes of pictures; a classifier belongs to one version."""
    adapting: bool = False
    touched: float = 0.0
    address: str = ""
    """The network address of the visitor, or its prefix."""
    _classifier: tuple[VersionedSupportSet, list[str], AdaptedClassifier] | None = None
    _before: list[Pictures] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        """Number of pictures per class, in the order in which classes were added."""
        return Counter(label for label, _ in self.pictures.values())

    @property
    def adapted(self) -> bool:
        return self._classifier is not None and self._classifier[0].version == self.version

    def check_room(self, label: str) -> None:
        """Raise if there is no room for another picture of this class."""
        counts = self.counts
        if len(self.pictures) >= self.limits.pictures:
            raise ApiError(409, f"a session can have {self.limits.pictures} pictures; remove one first")
        if label not in counts and len(counts) >= self.limits.classes:
            raise ApiError(409, f"a session can have {self.limits.classes} classes; remove one first")
        if counts[label] >= self.limits.pictures_per_class:
            most = self.limits.pictures_per_class
            raise ApiError(409, f"a class can have {most} pictures; remove one first")

    def add(self, label: str, pixels: Pixels) -> str:
        """Add a picture and return its id."""
        self.check_room(label)
        name = secrets.token_hex(8)
        self._change({**self.pictures, name: (label, pixels)})
        return name

    def remove(self, name: str) -> None:
        self._known_picture(name)
        self._change({other: entry for other, entry in self.pictures.items() if other != name})

    def remove_label(self, label: str) -> None:
        self._known(label)
        self._change({name: entry for name, entry in self.pictures.items() if entry[0] != label})

    def correct(self, name: str, label: str) -> None:
        """Give a picture another label."""
        was, pixels = self._known_picture(name)
        if was != label:
            self.check_room(label)
            self._change({**self.pictures, name: (label, pixels)})

    def undo(self) -> None:
        """Undo the last change of pictures or labels."""
        if not self._before:
            raise ApiError(409, "there is nothing to undo")
        self.pictures = self._before.pop()
        self.version += 1

    @property
    def undoable(self) -> int:
        """Number of changes that can be undone."""
        return len(self._before)

    def _change(self, pictures: Pictures) -> None:
        self._before = [*self._before, self.pictures][-UNDOABLE:]
        self.pictures = pictures
        self.version += 1

    def keep(self, pixels: Pixels) -> str:
        """Keep an unlabelled picture and return its id; the oldest make room for new ones."""
        name = secrets.token_hex(8)
        self.unlabelled[name] = pixels
        while len(self.unlabelled) > self.limits.pictures:
            del self.unlabelled[next(iter(self.unlabelled))]
        return name

    def kept(self, name: str) -> Pixels:
        """Return the pixels of a picture that was kept."""
        if name not in self.unlabelled:
            raise ApiError(404, "no such picture was kept, or others took its place")
        return self.unlabelled[name]

    def _known_picture(self, name: str) -> tuple[str, Pixels]:
        if name not in self.pictures:
            raise ApiError(404, "this session has no such picture")
        return self.pictures[name]

    def rename(self, label: str, to: str) -> None:
        """Rename a class; the classifier stays valid."""
        self._known(label)
        if to != label and to in self.counts:
            raise ApiError(409, "another class has this name already")
        version = self.version
        self._change({n: (to if was == label else was, p) for n, (was, p) in self.pictures.items()})
        self.version = version
        if self._classifier is not None:
            classes = self._classifier[1]
            classes[:] = [to if name == label else name for name in classes]

    def _known(self, label: str) -> None:
        if label not in self.counts:
            raise ApiError(404, "this session has no such class")

    def support_set(self) -> VersionedSupportSet:
        """Return the pictures to adapt to."""
        if self.adapting:
            raise ApiError(409, "this session is adapting already")
        classes = tuple(self.counts)
        if len(classes) < 2:
            raise ApiError(409, f"at least 2 classes with pictures are needed, not {len(classes)}")
        pixels = torch.from_numpy(np.stack([p for _, p in self.pictures.values()]))
        labels = torch.tensor([classes.index(label) for label, _ in self.pictures.values()])
        return VersionedSupportSet(classes, pixels, labels, self.version, names=tuple(self.pictures))

    def set_adapted(self, support: VersionedSupportSet, adapted: AdaptedClassifier) -> None:
        """Store a classifier, unless the pictures it was adapted to have changed."""
        if support.version != self.version or support.classes != tuple(self.counts):
            raise ApiError(409, "classes or pictures changed while the model adapted; adapt again")
        self._classifier = support, list(support.classes), adapted

    def classifier(self) -> tuple[list[str], AdaptedClassifier]:
        """Return the classes and the classifier adapted to the current pictures."""
        if self._classifier is None:
            raise ApiError(409, "the model has not adapted to these classes yet; adapt first")
        if not self.adapted:
            raise ApiError(409, "pictures changed since the model adapted; adapt again")
        return self._classifier[1], self._classifier[2]

    def learned(self) -> VersionedSupportSet:
        """Return the support set that the classifier has learned from."""
        self.classifier()
        assert self._classifier is not None
        return self._classifier[0]

    @property
    def kept_bytes(self) -> int:
        shown = {id(p): p.nbytes for entry in (self.pictures, *self._before) for _, p in entry.values()}
        network = 0 if self._classifier is None else self._classifier[2].own_bytes
        return sum(shown.values()) + sum(p.nbytes for p in self.unlabelled.values()) + network


class Sessions:
    """All sessions by unguessable tokens."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, address: str = "", pictures: Sequence[tuple[str, Pixels]] = ()) -> str:
        """Begin a session with these labelled pictures for a client at this address; return its token."""
        self.delete_idle()
        prefix = network_prefix(address)
        same = sum(session.address == prefix for session in self._sessions.values())
        if same >= self._limits.sessions_per_address and not is_local(address):
            raise ApiError(429, "too many sessions from this address; end one or try again later", retry=60)
        if len(self) >= self._limits.sessions:
            raise ApiError(503, "the server has no room for more sessions; try again later", retry=60)
        token = secrets.token_urlsafe(24)
        named = {secrets.token_hex(8): picture for picture in pictures}
        self._sessions[token] = Session(self._limits, named, touched=self._clock(), address=prefix)
        return token

    def get(self, token: str) -> Session:
        self.delete_idle()
        session = self._sessions.get(token)
        if session is None:
            idle = f"{self._limits.forget_minutes:g} minutes without a request"
            raise ApiError(404, f"no such session; sessions are deleted after {idle}")
        session.touched = self._clock()
        return session

    def end(self, token: str) -> None:
        self.get(token)
        del self._sessions[token]

    def delete_idle(self) -> None:
        oldest = self._clock() - 60 * self._limits.forget_minutes
        idle = [t for t, s in self._sessions.items() if s.touched < oldest and not s.adapting]
        for token in idle:
            del self._sessions[token]

    def check_room(self, more: int) -> None:
        """Raise if there is no room for so many more bytes."""
        if sum(s.kept_bytes for s in self._sessions.values()) + more > self._limits.kept_bytes:
            raise ApiError(503, "the server has no room for more pictures; try again later", retry=60)
