"""Files that are broken, huge or meant to do harm: each is refused, and nothing else happens."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
from PIL import Image

from pathaware.data.pixels import ImageInput
from pathaware.serve.api_error import ApiError
from pathaware.serve.limits import Limits
from pathaware.serve.uploads import read_image
from tests.serve.hostile import FILES, HTML, JPEG, bomb, webp_of_size
from tests.serve.serving import begin, encoded, png, serving, taught_session

FORM = ImageInput(28, 1, True, (0.1,), (0.3,))
ROOM = 150
"""MiB that refusing a file may take; decoding the largest one here would take 2,400."""


@pytest.fixture(scope="module")
def patient(server):
    """One session that has to endure it all."""
    with httpx.Client(base_url=server.address, timeout=60) as client:
        session = taught_session(client)
        assert client.post(f"{session}/adapt").status_code == 200
        expected = client.post(f"{session}/classify", content=png(3)).json()
        yield client, session, expected


@pytest.mark.parametrize("to", ["pictures?label=a", "classify"])
@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_and_changes_nothing(server, patient, name, to):
    client, session, expected = patient
    server.forget_peak()
    before = server.memory()
    answer = client.post(f"{session}/{to}", content=FILES[name])
    assert answer.status_code in (400, 413, 415, 422), answer.text
    assert set(answer.json()) == {"error"}
    assert len(answer.json()["error"]) < 200
    assert server.memory("VmHWM") - before < ROOM
    assert client.get(session).json() == {"classes": {"a": 1, "b": 1}, "adapted": True}
    assert client.post(f"{session}/classify", content=png(3)).json() == expected


def test_after_all_of_them_nothing_is_on_disk_or_on_the_terminal(tmp_path):
    with serving(tmp_path) as server:
        with httpx.Client(base_url=server.address, timeout=60) as client:
            session = begin(client)
            for content in FILES.values():
                client.post(f"{session}/pictures?label=a", content=content)
        assert server.written() == []
        server.process.terminate()
        assert server.process.wait(20) == 0
        assert server.process.stderr.read() == ""


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("SVG with a script", 415),
        ("PDF", 415),
        ("EPS", 415),
        ("HTML", 415),
        ("an icon in an icon", 415),
        ("PNG, 50000×50000", 413),
        ("PNG, a little too large", 413),
        ("PNG, 1×25000000", 413),
        ("JPEG, 65535×65535", 413),
        ("WebP, 16384×16384", 413),
        ("PNG, cut in half", 422),
        ("JPEG, cut off", 422),
        ("empty", 400),
    ],
)
def test_the_status_says_what_is_wrong(name, status):
    with pytest.raises(ApiError) as refused:
        read_image(FILES[name], FORM, Limits())
    assert refused.value.status == status


def test_a_picture_of_32_bits_is_refused_with_advice():
    for values in (np.zeros((8, 8), np.float32), np.zeros((8, 8), np.int32)):
        with pytest.raises(ApiError, match="save it as 8-bit") as refused:
            read_image(encoded(Image.fromarray(values), "TIFF"), FORM, Limits())
        assert refused.value.status == 415


def odd_but_harmless() -> dict[str, bytes]:
    frames = [Image.fromarray(np.full((8, 8), i % 250, np.uint8)) for i in range(10_000)]
    return {
        "GIF of 10,000 frames": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "JPEG, then HTML": JPEG + HTML,
        "WebP, animated": webp_of_size(64, 64),
        "as many pixels as allowed": bomb(5000),
        "one row as long as allowed": encoded(Image.new("L", (16_384, 1))),
    }


ODD = odd_but_harmless()


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_but_a_picture_costs_no_more_than_its_first_frame(name):
    found = read_image(ODD[name], FORM, Limits())
    assert found.shape == (1, 28, 28)
    assert found.base is None  # no view that would keep the upload alive
