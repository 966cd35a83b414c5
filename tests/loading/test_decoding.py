"""What ends a running graph, and what is left of that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from making import damaged_jpeg, jpeg, write_shard

from gpuloader import BadImageError, GPULoader


def frames(error: BaseException) -> Iterator[FrameType]:
    """All that an error holds through its trace."""
    trace = error.__traceback__
    while trace is not None:
        frame: FrameType | None = trace.tb_frame
        while frame is not None:
            yield frame
            frame = frame.f_back
        trace = trace.tb_next


@pytest.mark.parametrize("bad", [jpeg(64, 64)[:100], damaged_jpeg()], ids=["the gate refuses", "DALI refuses"])
def test_an_error_holds_no_frames_of_dalis_which_hold_the_pipeline(tmp_path: Path, bad: bytes) -> None:
    samples = [
        {"__key__": f"{number}", "jpg": bad if number == 5 else jpeg(64, 64), "cls": b"1"} for number in range(8)
    ]
    shard = write_shard(tmp_path / "a.tar", samples)
    with GPULoader(shard, 2, None, preset="imagenet_eval") as loader, pytest.raises(BadImageError) as caught:
        list(loader)
    held = {frame.f_code.co_filename for frame in frames(caught.value)}
    assert any("gpuloader" in name for name in held)
    assert [name for name in held if "nvidia" in name] == []
    assert caught.value.__context__ is None
