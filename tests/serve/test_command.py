"""`pathaware serve` as it is called: what it says, how it ends, and what it refuses."""

from __future__ import annotations

import builtins
import contextlib
import signal
import socket
import threading
import time

import httpx
import pytest

from pathaware.cli import main
from pathaware.serve.server import bind
from tests.serve.serving import asking, begin, png, serving, teach


def refused(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["serve", *arguments])
    said = capsys.readouterr()
    assert end.value.code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_a_run_that_is_not_there(capsys, tmp_path):
    assert "RUN" in refused(capsys, str(tmp_path / "none"))


def test_a_port_in_use(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"--port: {port} is in use" in refused(capsys, "glyphs", "--port", str(port))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--port", "70000"), "--port"),
        (("--host", "no.such.host.invalid"), "--host"),
        (("--host", "203.0.113.7"), "--host"),
        (("--host", ""), "--host"),
        (("--forget-after", "0"), "--forget-after"),
        (("--forget-after", "nan"), "--forget-after"),
        (("--device", "toaster"), "device"),
    ],
)
def test_what_cannot_be_used_is_named(capsys, arguments, named):
    assert named in refused(capsys, "glyphs", *arguments)


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_missing_package_is_named_with_the_way_to_install_it(capsys, monkeypatch, package):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=package)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    said = refused(capsys, "glyphs")
    assert package in said
    assert "in a clone of pathaware: pip install '.[serve]'" in said


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signals_shut_it_down_cleanly(tmp_path, sent, code):
    with serving(tmp_path) as server:
        server.process.send_signal(sent)
        assert server.process.wait(20) == code
        assert server.process.stdout.read() == ""  # one line it was
        assert server.process.stderr.read() == ""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_with_work_in_the_queue(tmp_path, sent):
    """A check of 150 pictures takes minutes, and nobody waits for its answer any more."""
    with asking(tmp_path) as (server, client):
        session = begin(client)
        for number in range(100):
            teach(client, session, "ab"[number % 2], png(number))
        with pytest.raises(httpx.ReadTimeout):
            client.post(f"{session}/check", timeout=1.0)
        asked = threading.Thread(target=suppressed, args=(client, f"{session}/check"))
        asked.start()
        time.sleep(0.5)
        begun = time.monotonic()
        server.process.send_signal(sent)
        assert server.process.wait(20) == (130 if sent == signal.SIGINT else 0)
        assert time.monotonic() - begun < 5  # two seconds on an idle machine
        asked.join()
        assert server.process.stderr.read() == ""


def suppressed(client: httpx.Client, path: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        client.post(path)


def test_listening_to_everybody_is_warned_of_and_numbers_are_names(tmp_path):
    with serving(tmp_path, "--host", "0.0.0.0", "--allow-host", "teach.example") as server:
        get = lambda host: httpx.get(server.address, headers={"Host": host}).status_code  # noqa: E731
        assert get("192.0.2.7:8765") == 200
        assert get("teach.example") == 200
        assert get("evil.example") == 400
        server.process.terminate()
        warning = server.process.stderr.read()
    assert warning.startswith("warning: --host 0.0.0.0")
    assert warning.count("\n") == 1


def test_answers_do_not_wait_to_be_confirmed_halfway():
    with bind("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()) as line:
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert line.getpeername() == accepted.getsockname()
