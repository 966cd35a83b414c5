"""What DALI does not promise, as it is in 2.4, the only version that pyproject.toml allows and the tests saw."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvidia.dali.pipeline import Pipeline


def leak_after_fork(pipeline: Pipeline) -> None:
    """Leaves a pipeline to the parent, in a forked child: it is never destroyed here.

    Relies on `Pipeline._pipe`, DALI's own object in C++, and on None there for a pipeline that was shut down, as
    in 2.4. DALI's threads are not in the child, and to destroy the pipeline waits for them without end. Nothing public
    lets go of a pipeline without that: DALI does it when the Python object goes, and when the process ends.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipeline._pipe))  # an owner who never lets go
    pipeline._pipe = None  # else DALI shuts it down first


def is_decode_failure(message: str) -> bool:
    """Whether an error of DALI's blames an image, not the machine: memory, the driver or another operator.

    Relies on the words of DALI's errors: the operator's name before "encountered:", the cause behind it, as in 2.4.
    All of them are RuntimeError or of types that Python's own errors have, without a code or a sample's number.
    """
    return "fn.decoders" in message and not re.search("alloc|memory|cuda", message.partition("encountered:")[2], re.I)


def decoder_cause(message: str) -> str:
    """What the decoder says of the image, in an error that `is_decode_failure`; "" where it says nothing.

    Relies on the same words, and on "Failed to decode sample #", whose number is not the batch's, before the cause, as
    in 2.4.
    """
    line = message.partition("encountered:\n\n")[2].partition("\n")[0]
    return re.sub(r"Failed to decode sample #\d+ ?:?", "", line).strip()


def is_out_of_memory(message: str) -> bool:
    """Whether an error says that a device has no memory left.

    Relies on the words of DALI's errors, and of those of CUDA, nvJPEG and C++ that DALI passes on, as in 2.4. They
    come as RuntimeError like all others. torch has a type for its own, whose words are CUDA's.
    """
    return (
        re.search(r"allocation failed|ALLOCATOR_FAILURE|bad_alloc|out of memory|MemoryAllocation", message) is not None
    )


@cache
def compiled_operator() -> Any:  # noqa: ANN401 - a class of DALI's, which has no types
    """The class of DALI's Numba operator, for functions that Numba compiled and cached. It imports Numba.

    Relies on `NumbaFunction._get_run_fn_cpu` and `_get_setup_fn_cpu`, which give the addresses of C functions with the
    signatures of `_run_fn_sig` and `_setup_fn_sig`, as in 2.4. In public DALI takes Python functions alone, and
    compiles a wrapper around them at every start, which takes seconds.
    """
    from nvidia.dali.plugin.numba import NumbaFunction

    class Compiled(NumbaFunction):
        def _get_run_fn_cpu(self, run_fn: Any, *_: Any) -> int:  # noqa: ANN401
            address: int = run_fn.address
            return address

        def _get_setup_fn_cpu(self, setup_fn: Any) -> int:  # noqa: ANN401
            address: int = setup_fn.address
            return address

    return Compiled
