"""Tests here need a GPU. They skip without one, and fail instead where GPULOADER_REQUIRE_GPU=1."""

import os

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


def pytest_itemcollected(item: pytest.Item) -> None:
    """A warning is no failure here: of DALI's and torch's, some come only on a GPU, and nobody has seen them yet."""
    item.add_marker(pytest.mark.filterwarnings("default"))
