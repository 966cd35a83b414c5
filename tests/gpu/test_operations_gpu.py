"""Each operation alone: behind a policy, a wrong one hardly shows."""

from __future__ import annotations

from pathlib import Path

from gpuloader.tools.verify import verify


def test_each_makes_of_equally_decoded_images_what_the_cpu_makes(shards: list[Path], gpu: int) -> None:
    rows = verify(shards, gpu, checks=["operations"]).rows
    assert [row for row in rows if not row.ok] == []
