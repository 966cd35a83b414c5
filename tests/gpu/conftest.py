"""Tests here need a GPU. They skip without one, and fail instead where GPULOADER_REQUIRE_GPU=1."""

import os
import subprocess

import pytest
import torch


@pytest.fixture(autouse=True)
def gpu() -> int:
    """The number of the GPU to use."""
    if torch.cuda.is_available():
        return torch.cuda.current_device()
    if os.environ.get("GPULOADER_REQUIRE_GPU") == "1":
        pytest.fail("GPULOADER_REQUIRE_GPU=1, and torch sees no CUDA device")
    pytest.skip("no CUDA device")


@pytest.fixture
def alone(gpu: int) -> None:
    """Skips beside other processes, whose memory `torch.cuda.mem_get_info` counts, too."""
    query = ["nvidia-smi", f"--id={gpu}", "--query-compute-apps=pid", "--format=csv,noheader"]
    processes = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    if len(processes) > 1:
        pytest.skip(f"{len(processes)} processes use the GPU")


def pytest_itemcollected(item: pytest.Item) -> None:
    """A warning is no failure here: of DALI's and torch's, some come only on a GPU, and nobody has seen them yet."""
    item.add_marker(pytest.mark.filterwarnings("default"))
