"""Writing to a pipe, which takes less at a time than there is."""

from __future__ import annotations

import os
from threading import Thread

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuloader.base.child_processes import write_all

MANY = np.arange(100_000).astype(np.uint8)


@pytest.mark.parametrize("at_once", [1000, 10**9])
@pytest.mark.parametrize(
    "data", [b"", b"abc", MANY[:0], MANY, MANY.tobytes()], ids=["none", "abc", "[]", "many", "bytes"]
)
def test_all_of_it_arrives(data: bytes | NDArray[np.uint8], at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:at_once]))  # as where a signal comes between

    def send() -> None:
        write_all(writing, data)
        os.close(writing)

    thread = Thread(target=send)
    thread.start()
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == bytes(data)
    thread.join()


def test_a_reader_that_is_gone_is_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb"), pytest.raises(BrokenPipeError):
        write_all(writing, b"abc")
