"""The page of operations: every transform is on it, and is as exact as its docstring says."""

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from gpuloader.recipe import TRANSFORMS

ROOT = Path(__file__).resolve().parent.parent


def _picturing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("picturing", ROOT / "scripts/picturing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


picturing = _picturing()
BOUNDS = {
    name: int(found[2] or 0)
    for name, kind in TRANSFORMS.items()
    if (found := re.search(r"its levels are torchvision's( within (\d+))?", kind.__doc__ or ""))
}


@pytest.fixture(autouse=True, scope="module")
def torch_in_one_thread() -> Iterator[None]:
    """For images as small as these its threads cost more than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", BOUNDS)
def test_it_is_as_near_to_torchvisions_as_its_docstring_says(name: str) -> None:
    largest, mean = picturing.measure(picturing.EXAMPLES[name], repeat=1, graphs=["cpu"])["cpu"]
    assert largest <= BOUNDS[name]
    assert mean <= 0.001


def test_every_operation_is_on_the_page_as_measured() -> None:
    measured = json.loads((picturing.FOLDER / "differences.json").read_text())
    shown_by_others = {"FiveCrop", "TenCrop", "Normalize"}  # views of CornerCrop and CenterCrop; nothing to be seen
    assert set(measured) == set(picturing.EXAMPLES) == set(TRANSFORMS) - shown_by_others
    page = picturing.PAGE.read_text()
    assert picturing.replaced(page, picturing.page(measured)) == page
    assert all((picturing.FOLDER / f"{name}.jpg").is_file() for name in measured)


def test_each_image_of_a_picture_has_its_caption_below() -> None:
    images = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 3, 224, 224)
    tiles = [(f"image {number}\ndrawn: nothing", image) for number, image in enumerate(images)]
    sheet = torch.from_numpy(np.array(picturing.sheet(tiles)))
    height = len(sheet) // 2
    for number in range(5):
        top, left = number // 3 * height, number % 3 * 236
        assert (sheet[top : top + 224, left : left + 224] == number).all()
        assert (sheet[top + 224 : top + height, left : left + 224] < 128).any()
    assert (sheet[height:, 472:] == 255).all()  # where a sixth would be


@pytest.mark.parametrize(("name", "rows"), [("Grayscale", 1), ("RandomPosterize", 2)])
def test_what_looks_the_same_is_shown_once(name: str, rows: int) -> None:
    assert picturing.picture(picturing.EXAMPLES[name]).height // 224 == rows
