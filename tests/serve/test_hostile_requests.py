"""Requests that are broken, huge, from other sites or for another session get a 4xx response."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress
from urllib.parse import quote, urlsplit

import httpx
import pytest

from tests.serve.serving import asking, begin, png, teach

LABELS = {
    "missing": "",
    "empty": "?label=",
    "blank": "?label=%20%09%20",
    "a line break": "?label=a%0Ab",
    "a null byte": "?label=a%00b",
    "an escape sequence": "?label=%1b%5b31m",
    "10 kB": "?label=" + "a" * 10_000,
    "65 characters": "?label=" + "a" * 65,
    "text turned around": "?label=a%E2%80%AEb",
    "nothing to see": "?label=%E2%80%8D",
    "a line separator": "?label=a%E2%80%A8b",
    "not UTF-8": "?label=%ff%fe",
    "half a character": "?label=%ED%A0%80",
    "this folder": "?label=.",
    "the folder above": "?label=..",
    "another name": "?Label=a",
}
STRANGERS = {
    "another site": {"Origin": "http://evil.example"},
    "no site at all": {"Origin": "null"},
    "another port": {"Origin": "http://127.0.0.1:1"},
    "an origin that is none": {"Origin": "http://[::1"},
    "cross-site by the browser's word": {"Sec-Fetch-Site": "cross-site"},
    "same site, other origin": {"Sec-Fetch-Site": "same-site"},
    "own origin, but cross-site": {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1"},
}
ICON = b"GET /icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"
HOSTS = [
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example:80",
    "evil@127.0.0.1",
    "[::1",
    "0x7f.1",
]


def state(client: httpx.Client, session: str) -> object:
    return client.get(session).raise_for_status().json()


def refused(answer: httpx.Response, *statuses: int) -> None:
    assert answer.status_code in statuses, (answer.status_code, answer.text)
    assert set(answer.json()) == {"error"}
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("name", LABELS)
def test_a_label_that_is_no_name_is_refused(client, taught, name):
    before = state(client, taught)
    refused(client.post(f"{taught}/pictures{LABELS[name]}", content=png()), 422)
    to = LABELS[name].replace("label=", "to=")
    refused(client.post(f"{taught}/labels/a{to}"), 422)
    assert state(client, taught) == before


@pytest.mark.parametrize(
    "label", ["../../etc/passwd", "<img src=x onerror=alert(1)>", "a/b?c#d%2F", "猫", "  é "]
)
def test_a_label_that_looks_dangerous_is_only_a_name(client, taught, label):
    teach(client, taught, label, png())
    assert label.strip() in state(client, taught)["classes"]
    assert client.delete(f"{taught}/labels/{quote(label.strip(), safe='')}").status_code == 204
    assert state(client, taught)["classes"] == {"a": 1, "b": 1}


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_can_change_nothing(client, taught, name):
    before = state(client, taught)
    for method, path in (
        ("POST", "/api/sessions"),
        ("POST", f"{taught}/pictures?label=c"),
        ("POST", f"{taught}/adapt"),
        ("POST", f"{taught}/forget"),
        ("DELETE", taught),
    ):
        refused(client.request(method, path, content=png(), headers=STRANGERS[name]), 403)
    assert state(client, taught) == before


@pytest.mark.parametrize("host", HOSTS)
def test_another_host_name_is_not_answered(client, host):
    for path in ("/", "/api/model"):
        refused(client.get(path, headers={"Host": host}), 400)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1", "[::1]:8765"])
def test_the_names_of_this_machine_are_answered(client, host):
    assert client.get("/", headers={"Host": host}).status_code == 200


def test_the_pages_own_requests_are_answered(client):
    own = {"Origin": str(client.base_url).rstrip("/")}
    assert client.post("/api/sessions", headers=own).status_code == 201
    assert client.post("/api/sessions", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 201


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/sessions/unknown", 404),
        ("POST", "/api/sessions/unknown/adapt", 404),
        ("POST", "/api/sessions/unknown/pictures?label=a", 404),
        ("DELETE", "/api/sessions/%252e%252e%252f", 404),
        ("DELETE", "/api/sessions/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/..%2f..%2fetc/passwd", 404),
        ("GET", "/app.js/../../app.py", 404),
        ("GET", "/page/index.html", 404),
        ("GET", "/docs", 404),
        ("GET", "/api/examples/NaN.png", 404),
        ("GET", "/api/examples/-1.png", 404),
        ("GET", "/api/examples/" + "9" * 5000 + ".png", 404),
        ("GET", "/api/sessions/" + "a" * 30_000, 404),
        ("GET", "/api/sessions", 405),
        ("PUT", "/api/model", 405),
        ("TRACE", "/", 405),
        ("PATCH", "/api/sessions/unknown", 405),
        ("OPTIONS", "/api/sessions", 405),
        ("BREW", "/api/sessions", 405),
    ],
)
def test_an_address_or_method_that_is_not_there(client, method, path, status):
    refused(client.request(method, path), status)


def test_a_session_cannot_touch_the_pictures_of_another(client, taught):
    other = begin(client)
    picture = teach(client, other, "a", png(9))
    refused(client.delete(f"{taught}/pictures/{picture}"), 404)
    assert state(client, other)["classes"] == {"a": 1}
    refused(client.delete(f"{taught}/pictures/1"), 404)
    refused(client.delete(f"{taught}/labels/z"), 404)
    refused(client.post(f"{taught}/labels/z?to=y"), 404)
    refused(client.post(f"{taught}/labels/a?to=b"), 409)
    assert state(client, taught)["classes"] == {"a": 1, "b": 1}


def test_a_form_is_refused_with_a_hint(client, taught):
    answer = client.post(f"{taught}/pictures?label=a", files={"file": png()})
    refused(answer, 415)
    assert "--data-binary" in answer.text


def raw(server, *parts: bytes, pause: float = 0.0, seconds: float = 30) -> bytes:
    """The answer to bytes that no HTTP client would send; `b""` if the server just hangs up."""
    with connected(server) as line:
        line.settimeout(seconds)
        try:
            for part in parts:
                line.sendall(part)
                time.sleep(pause)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has heard enough
        answer = b""
        try:
            while not ((b"\r\n\r\n" in answer and b"}" in answer) or b"Invalid" in answer):
                more = line.recv(65536)
                if not more:
                    break
                answer += more
        except ConnectionResetError:
            pass
        return answer


def connected(server) -> socket.socket:
    where = urlsplit(server.address)
    return socket.create_connection((where.hostname, where.port), timeout=30)


def until_closed(server, sent: bytes) -> tuple[bytes, float]:
    """All that the server answers until it closes the connection, and the seconds it took."""
    begun, answer = time.monotonic(), b""
    with connected(server) as line:
        line.sendall(sent)
        while more := line.recv(65536):
            answer += more
    return answer, time.monotonic() - begun


def start(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


@pytest.mark.parametrize(
    ("headers", "body", "statuses"),
    [
        (["Content-Length: 104857600"], b"x" * 2**20, (413,)),
        (["Content-Length: 99999999999999999999"], b"x" * 100, (400, 413)),
        (["Content-Length: -5"], b"x" * 100, (400,)),
        (["Content-Length: five"], b"x" * 100, (400,)),
        (["Content-Length: 5", "Content-Length: 50"], b"x" * 50, (400,)),
        (["Content-Length: 3"], png(), (415, 422)),
        (["Transfer-Encoding: chunked"], b"zz\r\nnonsense\r\n", (400,)),
        (["Transfer-Encoding: chunked"], b"5\r\nhello\r\n0\r\n\r\n", (415,)),
        (["Content-Length: 5", "Transfer-Encoding: chunked"], b"5\r\nhello\r\n0\r\n\r\n", (400,)),
        (["Transfer-Encoding: gzip, chunked"], b"5\r\nhello\r\n0\r\n\r\n", (400, 415, 501)),
        ([f"X-{i}: {'y' * 90}" for i in range(5000)], b"", (400, 431)),
        (["X-Long: " + "y" * 1_000_000], b"", (400, 431)),
        (["Bad Header\x01: a"], b"", (400,)),
        (["Host: evil.example"], b"", (400,)),
    ],
)
def test_what_no_client_would_send_is_refused(server, client, taught, headers, body, statuses):
    before = state(client, taught)
    answer = raw(server, start(f"{taught}/pictures?label=c", *headers), body)
    assert int(answer.split()[1]) in statuses, answer[:300]
    assert state(client, taught) == before


@pytest.mark.parametrize(
    "line", [b"\0\0\0\0\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\0"]
)
def test_what_is_not_http_does_no_harm(server, client, line):
    assert b"400" in raw(server, line, seconds=2 if line[0] == 22 else 30)[:20] or line[0] == 22
    assert client.get("/api/model").status_code == 200


def test_a_body_without_end_is_cut_off_and_never_held(server, client, taught):
    server.forget_peak()
    before, held = state(client, taught), server.memory()
    endless = [b"100000\r\n" + bytes(2**20) + b"\r\n"] * 200
    answer = raw(server, start(f"{taught}/pictures?label=c", "Transfer-Encoding: chunked"), *endless)
    assert answer[:12] in (b"HTTP/1.1 413", b"")
    answer = client.post(f"{taught}/classify", content=(bytes(2**20) for _ in range(100)))
    refused(answer, 409)  # nothing was read: this session has not adapted
    answer = client.post(f"{taught}/pictures?label=c", content=bytes(100 * 2**20))
    refused(answer, 413)
    assert server.memory("VmHWM") - held < 60
    assert state(client, taught) == before


def test_limits_of_a_session_hold(tmp_path):
    limits = {"classes": 3, "pictures_per_class": 2, "pictures": 5, "sessions": 2}
    with asking(tmp_path, limits=limits) as (_, client):
        session = begin(client)
        for label in "aabbc":
            teach(client, session, label, png())
        refused(client.post(f"{session}/pictures?label=c", content=png()), 409)  # the sixth picture
        client.delete(f"{session}/labels/a").raise_for_status()
        teach(client, session, "d", png())
        refused(client.post(f"{session}/pictures?label=e", content=png()), 409)  # the fourth class
        refused(client.post(f"{session}/pictures?label=b", content=png()), 409)  # its third picture
        assert state(client, session) == {"classes": {"b": 2, "c": 1, "d": 1}, "adapted": False}
        begin(client)
        full = client.post("/api/sessions")
        refused(full, 503)
        assert int(full.headers["Retry-After"]) > 0
        client.delete(session).raise_for_status()
        begin(client)  # there is room again


def test_a_client_that_sends_slowly_is_disconnected(tmp_path):
    """Headers, also of a second request on a connection, and a file. A request in progress is left alone."""
    limits = {"header_seconds": 0.5, "upload_seconds": 1.0}
    with asking(tmp_path, limits=limits) as (server, client):
        session = begin(client)
        for sent in (b"", b"GET / HTT", ICON + b"GET / HTTP/1.1\r\nHost:"):
            answer, seconds = until_closed(server, sent)
            assert answer.startswith(b"HTTP/1.1 200") == sent.startswith(ICON), answer
            assert 0.4 < seconds < 10
        begun = time.monotonic()
        answer = raw(server, start(f"{session}/pictures?label=c", "Content-Length: 100"), b"x")
        assert answer.startswith(b"HTTP/1.1 408")
        assert 0.9 < time.monotonic() - begun < 10


def test_clients_that_fall_silent_lose_their_connections(tmp_path):
    """As many as there are connections stop in a body, also of a refused request, or read nothing."""
    limits = {"connections": 40, "header_seconds": 1.0, "upload_seconds": 1.0, "answer_seconds": 1.0}
    with asking(tmp_path, limits=limits) as (server, client), ExitStack() as stack:
        session = begin(client)
        body = "Content-Length: 100"
        silent = (start(f"{session}/pictures?label=c", body), start("/nothing", body), 2000 * ICON)
        opened = [stack.enter_context(connected(server)) for _ in range(60)]
        for number, connection in enumerate(opened):
            connection.settimeout(20)
            with suppress(ConnectionError):  # it had to make room already
                connection.sendall(silent[number % 3] + b"x" * (number % 3 < 2))
        assert client.get("/api/model").status_code == 200  # there is room
        time.sleep(8)  # nobody connects, and all are given up
        for connection in opened:
            with suppress(ConnectionError):
                while connection.recv(65536):
                    pass


def test_bytes_that_h11_has_no_answer_to_are_no_traceback(server, client, taught):
    chunked = start(f"{taught}/pictures?label=c", "Transfer-Encoding: chunked")
    raw(server, chunked, b"-5\r\nhello\r\n", seconds=5)
    assert client.get("/api/model").status_code == 200


def test_slow_clients_hold_up_nobody(server, client, taught):
    """A hundred that stop in the headers, a hundred that stop in a file, a hundred that read nothing."""
    unfinished = start(f"{taught}/pictures?label=c", "Content-Length: 100")
    with ExitStack() as stack:
        opened = [stack.enter_context(connected(server)) for _ in range(300)]
        for number, connection in enumerate(opened):
            connection.sendall((b"GET / HT", unfinished, 20 * ICON)[number % 3])
        begun = time.monotonic()
        assert client.post(f"{taught}/adapt").status_code == 200
        label = client.post(f"{taught}/classify", content=png(1)).json()["label"]
        assert label in ("a", "b")
        assert time.monotonic() - begun < 20


def test_uploads_together_stay_within_their_memory(tmp_path):
    limits = {"uploads_in_memory": 3000, "kept_bytes": 1600}
    with asking(tmp_path, limits=limits) as (_, client):
        session = begin(client)
        full = client.post(f"{session}/pictures?label=a", content=bytes(5000))
        refused(full, 503)
        for label in "ab":  # 784 bytes each when scaled; and what the first upload took is given back
            teach(client, session, label, png())
        refused(client.post(f"{session}/pictures?label=c", content=png()), 503)
        refused(client.post(f"{session}/adapt"), 503)  # nor is there room for a network
        assert state(client, session)["adapted"] is False


def test_a_session_is_forgotten_when_nobody_uses_it(tmp_path):
    with asking(tmp_path, limits={"forget_minutes": 0.05}) as (_, c):
        used, unused = begin(c), begin(c)
        for _ in range(18):
            time.sleep(0.2)
            assert c.get(used).status_code == 200
        answer = c.get(unused)
        refused(answer, 404)
        assert "0.05 minutes" in answer.text
