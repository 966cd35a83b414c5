"""What torch does not promise, as it is in 2.4, the first version that pyproject.toml allows, and in 2.13."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:  # some builds of torch have no torch.distributed
    from torch.distributed.distributed_c10d import Store


def default_store() -> Store:
    """The store that `torch.distributed.init_process_group` began with; it must have been called.

    Relies on `torch.distributed.distributed_c10d._get_default_store`, as in 2.4. torch gives it back to nobody: only
    who makes the store has it, and it is mostly made of `init_method` or the environment.
    """
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def is_forked_after_cuda() -> bool:
    """Whether this process was forked after CUDA began in its parent, so that no GPU can be used in it.

    Relies on `torch.cuda._is_in_bad_fork`, as in 2.4. In public torch only fails in such a process, and only by
    starting CUDA: `torch.cuda.is_initialized` says False there and where CUDA did not begin yet.
    """
    return torch.cuda._is_in_bad_fork()
