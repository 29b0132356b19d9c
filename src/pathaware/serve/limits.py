"""Limits of a server; `docs/serving.md` has the same table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address

from pathaware.inference.change_ways import MAX_CLASSES
from pathaware.inference.trained_model import SupportSet


def is_local(address: str) -> bool:
    """Return True for this machine's own addresses, and where there is none, as with a Unix socket."""
    return not address or ip_address(address).is_loopback


def network_prefix(address: str) -> str:
    """An IPv4 address, or the first 64 bits of an IPv6 one: whoever has one of those has all."""
    if ":" not in address:
        return address
    found = IPv6Address(address)
    return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))


@dataclass(frozen=True)
class Limits:
    """The most a server stores and computes, whatever its clients send."""

    header_seconds: float = 10.0
    """Seconds for the headers of a request to arrive."""
    answer_seconds: float = 30.0
    """Seconds for a client to read what the server has sent."""
    upload_bytes: int = 10 * 2**20
    """Bytes per image file."""
    upload_seconds: float = 30.0
    """Seconds for a file to arrive."""
    uploads_in_memory: int = 128 * 2**20
    """Bytes of files being received or decoded, in all sessions together."""
    side: int = 16_384
    """Width or height of an image."""
    pixels: int = 25_000_000
    """Width × height of an image; a photograph has about 12 million."""
    classes: int = 20
    """Classes per session."""
    pictures_per_class: int = 50
    """Pictures per class."""
    pictures: int = 200
    """Pictures per session."""
    label_characters: int = 64
    """Characters per label."""
    sessions: int = 200
    """Sessions at a time."""
    sessions_per_address: int = 50
    """Sessions at a time from one address (of IPv6, from one network of 64 bits); this machine's own, which
    may be a proxy's, has no such limit."""
    kept_bytes: int = 512 * 2**20
    """Bytes of scaled pictures and adapted networks, in all sessions together."""
    forget_minutes: float = 10.0
    """Minutes without a request after which a session is deleted."""
    waiting: int = 200
    """Requests in the queue of a worker."""
    waiting_per_session: int = 10
    """Requests of one session in the queue of a worker."""
    connections: int = 1000
    """Connections at a time."""
    connections_per_address: int = 200
    """Connections at a time from one address; this machine's own has no such limit."""

    def with_room_for(self, saved: SupportSet | None) -> Limits:
        """Limits of which a session that begins with a saved classifier needs at most half."""
        if saved is None:
            return self
        counts = Counter(saved.labels.tolist())
        return replace(
            self,
            classes=max(self.classes, min(2 * len(saved.classes), MAX_CLASSES)),
            pictures_per_class=max(self.pictures_per_class, 2 * max(counts.values())),
            pictures=max(self.pictures, 2 * len(saved.labels)),
            label_characters=max(self.label_characters, max(map(len, saved.classes))),
        )
