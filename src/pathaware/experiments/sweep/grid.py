"""All combinations, trained and judged: what is done is not done again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from pathaware.experiments.sweep.plan import Point
from pathaware.experiments.sweep.summary import Outcome
from pathaware.experiments.sweep.workers import Crew, Folder

PAUSE = 0.1


def run_grid(
    points: Sequence[Point], folder: Folder, places: Sequence[dict[str, str]], told: Callable[[str], None]
) -> list[Outcome]:
    """A run that fails does not stop the others; the next sweep tries it again."""
    waiting = deque(point for point in points if folder.result(point) is None)
    told(f"{len(points)} runs, {len(waiting)} to train or judge, {min(len(places), len(points))} at a time")
    failed: dict[str, str] = {}
    done = len(points) - len(waiting)
    with Crew(folder, places) as crew:
        while waiting or crew.workers:
            while waiting and crew.idle:
                crew.start(waiting.popleft())
            for ended in crew.ended():
                done += 1
                if ended.reason:
                    failed[ended.point.name] = f"failed: {ended.reason}"
                told(f"{done} of {len(points)}: {ended.point.name}: {ended.reason or 'done'}")
            time.sleep(PAUSE)
    return [Outcome(point, folder.result(point), failed.get(point.name, "")) for point in points]
