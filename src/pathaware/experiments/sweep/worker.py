"""A process that trains one run and judges it: `python -m pathaware.experiments.sweep.worker`.

Its orders are a line of JSON on standard input. When standard input ends, whoever gave them wants it to
stop, or is gone; either way it saves where it is and ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

STOPPED = 75  # of those codes that C reserves: not now, try again


def work(order: dict[str, Any], stop: threading.Event) -> int:
    from pathaware.core.plugins import trust
    from pathaware.training.config import Config
    from pathaware.training.evaluation import evaluate
    from pathaware.training.provenance import evaluation_record, write_record
    from pathaware.training.session import TrainingSession, open_or_create

    trust(order["config"])
    run = open_or_create(Config.from_dict(order["config"]), Path(order["run"]))
    if not run.finished:
        with TrainingSession(run, quiet=True) as session:
            while not session.done:
                if stop.is_set():
                    session.save()
                    return STOPPED
                session.advance()
    result = evaluate(run.load(), run.config.problem, split=order["split"], tasks=order["tasks"])
    write_record(Path(order["record"]), evaluation_record(run, result))
    return 0


def main() -> None:
    from pathaware.core.errors import RunError, UsageError

    # Read past Python's buffers: a thread that waits in one would hold up the end of the process.
    with open(0, "rb", buffering=0, closefd=False) as orders:
        order = json.loads(orders.readline())
    stop = threading.Event()

    def listen() -> None:
        os.read(0, 1)
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        code = work(order, stop)
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)


if __name__ == "__main__":
    main()
