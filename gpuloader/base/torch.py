"""Uses undocumented parts of torch, as in 2.4, the first version that pyproject.toml allows, and in 2.13."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:  # some builds of torch have no torch.distributed
    from torch.distributed.distributed_c10d import Store


def default_store() -> Store:
    """Returns the store that `torch.distributed.init_process_group` uses; it must have been called before.

    Relies on `torch.distributed.distributed_c10d._get_default_store`, as in 2.4. torch has no public function for it:
    only the caller who makes the store has it, and it is mostly made from `init_method` or the environment.
    """
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def changes_of(tensor: torch.Tensor) -> int | None:
    """Returns how often a tensor was changed in place, also through its views; None if torch does not count.

    Relies on `Tensor._version`, as in 2.4, which autograd compares. torch does not count for tensors that are made in
    `torch.inference_mode`.
    """
    return None if tensor.is_inference() else tensor._version


def is_forked_after_cuda() -> bool:
    """Returns whether this process was forked after CUDA started in its parent, so that it cannot use a GPU.

    Relies on `torch.cuda._is_in_bad_fork`, as in 2.4. Public functions only fail in such a process, and only by
    starting CUDA: `torch.cuda.is_initialized` returns False there, as it does before CUDA starts.
    """
    return torch.cuda._is_in_bad_fork()
