"""Each test runs torch itself: it fails where torch does otherwise than gpuloader.base.torch relies on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from gpuloader.base.torch import changes_of, default_store, is_forked_after_cuda

OTHER_SIDE = f"torch {torch.__version__}"


@pytest.fixture
def store() -> Iterator[dist.Store]:
    """The one that torch.distributed begins with here."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield store
    dist.destroy_process_group()


def test_what_is_set_in_the_default_store_is_in_the_one_that_the_ranks_began_with(store: dist.Store) -> None:
    keys = store.num_keys()
    default_store().set("gpuloader", "here")
    assert store.num_keys() == keys + 1
    assert default_store().get("gpuloader") == b"here"


def test_changes_in_place_are_counted_also_through_views_and_in_inference_mode() -> None:
    numbers = torch.zeros(4)
    first, second = torch.split(numbers, [1, 3])
    before = changes_of(second)
    second.add(1)
    assert changes_of(second) == before
    with torch.inference_mode():
        first += 1
        assert changes_of(torch.zeros(4)) is None
    assert changes_of(second) != before


def test_no_process_is_forked_after_cuda_where_cuda_did_not_begin() -> None:
    assert is_forked_after_cuda() is False


def test_torch_itself_asks_the_same_before_it_begins_with_cuda() -> None:
    assert "_is_in_bad_fork" in torch.cuda.init.__globals__["_lazy_init"].__code__.co_names
