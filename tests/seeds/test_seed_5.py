"""CellMap's loader: the code of its guide to optimizing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from seeds import Names, Page

from gpuloader.compat import CellMapDataLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than there are cores

SAMPLES = [{"raw": torch.rand(1, 4, 4), "nucleus": torch.rand(1, 4, 4)} for _ in range(40)]
IMPORTS = {"cellmap_data": "gpuloader.compat"}
REMOVED = {5, 7}  # what the page shows as removed

# prefetch_factor, num_workers, pin_memory where there is a GPU, device
MADE = {
    1: (2, 8, True, None),
    2: (4, 8, True, "cuda"),
    3: (4, 12, True, "cuda"),
    4: (2, 4, False, "cpu"),
    9: (8, 8, True, "cuda"),
    10: (2, 4, True, "cuda"),
    11: (2, 16, True, "cuda"),
}


def data(names: Names) -> None:
    names["dataset"] = SAMPLES


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with closing(Page(5, IMPORTS, {1: data})) as page:
        # CellMap's own data set stays in its package.
        page.blocks[1] = page.blocks[1].replace("CellMapDataLoader, CellMapDataset", "CellMapDataLoader")
        yield page


@pytest.mark.parametrize("number", sorted(set(range(1, 12)) - REMOVED))
def test_a_block_runs(page: Page, number: int) -> None:
    loader = page.run(number)["loader"]
    assert isinstance(loader, CellMapDataLoader)
    if number in MADE:
        prefetch, workers, pins, device = MADE[number]
        assert (loader._prefetch_factor, loader.num_workers) == (prefetch, workers)
        assert loader._persistent_workers
        assert loader.device.type == (device or ("cuda" if torch.cuda.is_available() else "cpu"))
        assert loader._pin_memory == (pins and loader.device.type == "cuda")
    if number == 6:
        assert page.printed(number) == "Pin memory: False\nPrefetch factor: 2\n"
    if number == 8:
        assert page.printed(number) == "DataLoader is initialized\n"


@pytest.mark.parametrize("number", sorted(REMOVED))
def test_a_block_shows_what_was_removed(page: Page, number: int) -> None:
    with pytest.raises(AttributeError, match=r"_use_streams|_worker_executor"):
        page.run(number)


def test_workers_make_the_batches(page: Page) -> None:
    [loader, *_] = [page.run(1)["loader"]]
    small = CellMapDataLoader(loader.dataset, batch_size=16, num_workers=1, is_train=False, device="cpu")
    for batches in (small, small.loader):
        shapes = [tuple(batch["raw"].shape) for batch in batches]
        assert shapes == [(16, 1, 4, 4), (16, 1, 4, 4), (8, 1, 4, 4)]
