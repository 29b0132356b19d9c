from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pathaware.core.errors import UsageError
from pathaware.data.importers.pickles import text_keys, unpickle
from tests.data.image_trees import Runs, python2_pickle


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_lists_and_dicts_are_read_in_every_protocol(protocol: int) -> None:
    document = {
        "image_data": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "class_dict": OrderedDict(a=[0, 1]),
        "more": defaultdict(list, b=[np.int64(3), b"bytes"]),
    }
    read = unpickle(BytesIO(pickle.dumps(document, protocol)), "a file")
    np.testing.assert_array_equal(read.pop("image_data"), document.pop("image_data"))
    assert read == document


def test_python_2_strings_are_read_as_text() -> None:
    read = text_keys(unpickle(BytesIO(python2_pickle({b"data": [b"apple"]})), "a file"), "a file")
    assert read == {"data": ["apple"]}


def test_a_pickle_that_would_run_a_command_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    proof = tmp_path / "it ran"
    content = pickle.dumps({"image_data": Runs(proof)})
    with pytest.raises(UsageError, match=r"cache\.pkl: refused, this pickle asks for .*\.system"):
        unpickle(BytesIO(content), "cache.pkl")
    assert not proof.exists()
    pickle.loads(content)  # the same bytes do run where nothing stops them
    assert proof.exists()


@pytest.mark.parametrize("wanted", [eval, getattr, np.load, pickle.loads, Path], ids=lambda w: w.__name__)
def test_anything_but_the_parts_of_arrays_is_refused(wanted: Any) -> None:
    with pytest.raises(UsageError, match="refused, this pickle asks for"):
        unpickle(BytesIO(pickle.dumps(wanted)), "a file")


def test_codecs_other_than_the_one_for_bytes_are_refused() -> None:
    content = b"c_codecs\nencode\n(Vtext\nVhex\ntR."
    with pytest.raises(UsageError, match="a file: not a readable pickle"):
        unpickle(BytesIO(content), "a file")


@pytest.mark.parametrize("content", [b"", b"hello", pickle.dumps(np.zeros(100))[:-20], b"\x80\x05Q."])
def test_a_damaged_pickle_is_refused_by_name(content: bytes) -> None:
    with pytest.raises(UsageError, match="a file: "):
        unpickle(BytesIO(content), "a file")
