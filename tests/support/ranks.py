"""Several processes that meet at torch.distributed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from warm import Program

BEGIN = """
import sys; import torch.distributed as dist; from torch.distributed.device_mesh import init_device_mesh
from gpuloader import World; from gpuloader.errors import ConfigError; from gpuloader.loading.agreement import agree
meeting, rank, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
dist.init_process_group('gloo', init_method=f'file://{meeting}', rank=rank, world_size=%d)
"""


def outputs_of_ranks(work: str, folder: Path, count: int, *arguments: object) -> list[str]:
    """What `work` prints in each of them; `rank` is its own."""
    meeting, code = folder / "meeting", BEGIN % count + work
    running = [Program(code, meeting, rank, *arguments, stdout=subprocess.PIPE, text=True) for rank in range(count)]
    return [process.communicate(timeout=300)[0] for process in running]
