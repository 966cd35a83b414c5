"""What DALI does not promise, as it is in 2.4, the only version that pyproject.toml allows and the tests saw."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvidia.dali.data_node import DataNode
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


def is_cuda_failure(message: str) -> bool:
    """Whether an error is CUDA's own and not for a lack of memory: CUDA is of no use in the process any more.

    Relies on the words of DALI's errors, as in 2.4, as above.
    """
    return re.search("CUDA (runtime|driver) API error", message, re.I) is not None and not is_out_of_memory(message)


def call_compiled(
    run: int,
    setup: int,
    inputs: Sequence[DataNode],
    in_types: Sequence[Any],
    ins_ndim: Sequence[int],
    out_type: Any,  # noqa: ANN401
) -> DataNode:
    """One output of three dimensions, by C functions at two addresses, called sample by sample in DALI's own threads.

    Relies on the operator `NumbaFuncImpl`, of which `nvidia.dali.plugin.numba` makes its own, and on the signatures of
    its `run_fn` and `setup_fn`, as in 2.4 and in pipelines/kernels/kernels.c. In public DALI takes Python functions
    alone, and needs Numba to compile them at every start, which takes seconds.

    Args:
        run, setup: the addresses; what is there must stay.
        inputs: at most six, of `in_types` and `ins_ndim`.
        out_type: no float16, which the operator refuses.
    """
    operator = _compiled_operator()(
        device="cpu",
        run_fn=run,
        setup_fn=setup,
        out_types=[out_type],
        in_types=list(in_types),
        outs_ndim=[3],
        ins_ndim=list(ins_ndim),
        batch_processing=False,
    )
    return operator(*inputs)


@cache
def _compiled_operator() -> Any:  # noqa: ANN401 - a class of DALI's, which has no types
    from nvidia.dali import ops

    class Compiled(ops.python_op_factory("NumbaFuncImpl", "NumbaFuncImpl", generated=False)):  # type: ignore[misc]
        _impl_module = __name__
        ops.register_cpu_op("NumbaFuncImpl")  # type: ignore[attr-defined]

    return Compiled
