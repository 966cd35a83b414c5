"""Uses undocumented parts of DALI, as in 2.4, the only version that is allowed and tested."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvidia.dali.data_node import DataNode
    from nvidia.dali.pipeline import Pipeline


def leak_after_fork(pipeline: Pipeline) -> None:
    """Leaves a pipeline to the parent, in a forked child: it is never destroyed here.

    Relies on `Pipeline._pipe`, DALI's own C++ object, and on None there after a pipeline was shut down, as in 2.4.
    DALI's threads are not in the child, and destroying the pipeline would wait for them forever. No public method
    avoids that: DALI destroys a pipeline when the Python object goes, and when the process ends.
    """
    # DALI's object is destroyed with the last reference to it. This one has no holder, so nobody releases it, and the
    # object stays until the child's memory goes. The parent's own is not touched.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipeline._pipe))
    pipeline._pipe = None  # otherwise DALI shuts it down first


def is_decode_failure(message: str) -> bool:
    """Returns whether an error of DALI is about an image, and not about memory, the driver or another operator.

    Relies on the words of DALI's errors: the operator's name before "encountered:" and the cause after it, as in 2.4.
    All are RuntimeError or other types of Python's errors, without a code.
    """
    return "fn.decoders" in message and not re.search("alloc|memory|cuda", message.partition("encountered:")[2], re.I)


def decoder_cause(message: str) -> str:
    """Returns the decoder's message about the image, from an error that `is_decode_failure`; "" if it has none.

    Relies on the same words, and on the words of `failed_row`, which come before the cause, as in 2.4.
    """
    line = message.partition("encountered:\n\n")[2].partition("\n")[0]
    return _FAILED_ROW.sub("", line).strip()


def failed_row(message: str) -> int | None:
    """Returns the batch's first failing row, from an error that `is_decode_failure`; None if the error names none.

    Relies on "Failed to decode sample #", as in 2.4. The error loses all of the batch, and no public way names the row.
    """
    match = _FAILED_ROW.search(message)
    return int(match[1]) if match else None


_FAILED_ROW = re.compile(r"Failed to decode sample #(\d+) ?:?")


def is_out_of_memory(message: str) -> bool:
    """Returns whether an error means that a device has no memory left.

    Relies on the words of DALI's errors, and of errors of CUDA, nvJPEG and C++ that DALI passes on, as in 2.4. They are
    RuntimeErrors like all others. torch has a type for its own, with CUDA's words.
    """
    return (
        re.search(r"allocation failed|ALLOCATOR_FAILURE|bad_alloc|out of memory|MemoryAllocation", message) is not None
    )


def is_cuda_failure(message: str) -> bool:
    """Returns whether an error is CUDA's own and not a lack of memory: then the process can no longer use CUDA.

    Relies on the words of DALI's errors, as in 2.4; see above.
    """
    return re.search("CUDA (runtime|driver) API error", message, re.I) is not None and not is_out_of_memory(message)


def change_where(condition: DataNode, change: Callable[..., DataNode], *values: DataNode) -> DataNode:
    """Applies `change` to the samples for which `condition`, a bool on the CPU, is true; returns the first value.

    Relies on the operators `_conditional.split` and `_conditional.merge`, from which `enable_conditionals` makes `if`
    statements, as in 2.4. The public way rewrites the source of all functions, which takes half a second at each start,
    and on Python 3.14 fails if warnings are errors.

    Args:
        change: returns the first value changed; all nodes that it uses are in `values`, as it gets only some samples.
    """
    from nvidia.dali.fn import _conditional  # type: ignore[attr-defined]

    split = [_conditional.split(value, predicate=condition, _if_stmt=True) for value in values]
    changed = change(*(chosen for chosen, _ in split))
    merged: DataNode = _conditional.merge(changed, split[0][1], predicate=condition)
    return merged


def call_compiled(
    run: int, setup: int, inputs: Sequence[DataNode], in_types: Sequence[Any], ins_ndim: Sequence[int], out_type: object
) -> DataNode:
    """Makes an output of three dimensions by C functions at two addresses, called for each sample in DALI's threads.

    Relies on the operator `NumbaFuncImpl`, from which `nvidia.dali.plugin.numba` makes its own, and on the signatures
    of its `run_fn` and `setup_fn`, as in 2.4 and in pipelines/kernels/kernels.c. Publicly, DALI takes only Python
    functions, and needs Numba to compile them at every start, which takes seconds.

    Args:
        run, setup: the addresses; the functions must stay there.
        inputs: at most six, of `in_types` and `ins_ndim`.
        out_type: not float16, which the operator refuses.
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
