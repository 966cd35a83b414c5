"""What gpuloader.base relies on and only a GPU shows."""

import subprocess
import sys

import torch

FORKS = """
import os, torch
from gpuloader.base.torch import is_forked_after_cuda
torch.cuda.init()
assert not is_forked_after_cuda()
if (child := os.fork()) == 0:
    os._exit(7 if is_forked_after_cuda() else 8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_that_was_forked_after_cuda_began_knows() -> None:
    result = subprocess.run([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True, check=True)
    assert result.stdout == "7\n", f"torch {torch.__version__} is not as gpuloader.base takes it to be"
