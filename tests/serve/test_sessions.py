"""Contents of a session; a change during adaptation invalidates the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pathaware.inference.trained_model import AdaptedClassifier, SupportSet
from pathaware.serve.api_error import ApiError
from pathaware.serve.limits import Limits
from pathaware.serve.sessions import Session, Sessions, checked_label
from pathaware.serve.worker import Worker

PIXELS = np.zeros((1, 4, 4), np.uint8)
NETWORK = AdaptedClassifier(torch.nn.Linear(2, 2), None)  # type: ignore[arg-type]


def session(*labels: str) -> Session:
    made = Session(Limits())
    for label in labels:
        made.add(label, PIXELS)
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.add("a", PIXELS),
        lambda s: s.remove(next(iter(s.pictures))),
        lambda s: s.remove_label("b"),
        lambda s: s.rename("a", "c"),
    ],
)
def test_a_change_while_adapting_is_a_conflict(change):
    one = session("a", "b", "a")
    support = one.support_set()
    change(one)
    with pytest.raises(ApiError) as refused:
        one.set_adapted(support, NETWORK)
    assert refused.value.status == 409
    assert not one.adapted


def test_a_session_adapts_once_at_a_time():
    one = session("a", "b")
    one.adapting = True
    with pytest.raises(ApiError, match="already"):
        one.support_set()


def test_labels_are_places_in_the_order_of_classes():
    support = session("b", "a", "b").support_set()
    assert support.classes == ("b", "a")
    assert support.labels.tolist() == [0, 1, 0]


def test_idle_sessions_are_forgotten_but_not_while_they_adapt():
    now = 0.0
    sessions = Sessions(Limits(forget_minutes=1), clock=lambda: now)
    idle, busy = sessions.begin(), sessions.begin()
    sessions.get(busy).adapting = True
    now = 61.0
    sessions.delete_idle()
    assert len(sessions) == 1
    sessions.get(busy)
    with pytest.raises(ApiError):
        sessions.get(idle)


def test_names_of_sessions_are_long_and_never_the_same():
    sessions = Sessions(Limits())
    names = {sessions.begin() for _ in range(100)}
    assert len(names) == 100
    assert min(map(len, names)) >= 32


def test_labels_that_look_equal_are_equal():
    assert checked_label("e\u0301", 64) == checked_label(" é ", 64)


def test_a_full_queue_is_refused():
    import asyncio
    import threading

    async def fill() -> None:
        worker, go = Worker("test", 2), threading.Event()
        waiting = [asyncio.create_task(worker.run(go.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            await worker.run(go.wait)
        assert refused.value.status == 503
        go.set()
        await asyncio.gather(*waiting)
        assert await worker.run(lambda: 7) == 7
        worker.close()

    asyncio.run(fill())


def test_one_address_cannot_take_all_sessions():
    sessions = Sessions(Limits(sessions_per_address=2))
    first, _ = sessions.begin("10.0.0.1"), sessions.begin("10.0.0.1")
    with pytest.raises(ApiError, match="too many sessions from this address") as refused:
        sessions.begin("10.0.0.1")
    assert refused.value.status == 429
    sessions.begin("10.0.0.2")
    for _ in range(3):
        sessions.begin("127.0.0.1")  # a proxy on this machine, for all its visitors
        sessions.begin("::1")
    sessions.end(first)
    sessions.begin("10.0.0.1")
    for address in ("2001:db8::1", "2001:db8::2:0:0:1"):  # of one network
        sessions.begin(address)
    with pytest.raises(ApiError, match="too many sessions from this address"):
        sessions.begin("2001:db8::ffff:ffff:ffff:ffff")
    sessions.begin("2001:db8:0:1::1")


def test_limits_have_room_for_a_saved_classifier():
    labels = torch.arange(30).repeat(9)
    saved = SupportSet(tuple(f"{i:070}" for i in range(30)), torch.zeros(len(labels), 1, 2, 2), labels)
    limits = Limits().with_room_for(saved)
    assert (limits.classes, limits.pictures, limits.pictures_per_class) == (60, 540, 50)
    assert limits.label_characters == 70
    assert Limits().with_room_for(None) == Limits()
