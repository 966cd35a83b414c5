"""Numba-compiled kernels as operators of the graph: they run in DALI's threads, without Python's lock."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numba import carray, cfunc, njit
from numba import types as numba_types
from numba.core.event import Listener, install_listener
from numba.extending import intrinsic
from nvidia.dali import fn, types
from nvidia.dali.data_node import DataNode

from gpuloader.internals.dali import compiled_operator

_log = logging.getLogger("gpuloader")


def _can_cache() -> bool:
    """Whether Numba finds a folder for what it compiles; it needs one beside this file or in the user's home."""
    try:
        njit(cache=True)(_can_cache)
    except RuntimeError:
        _log.warning("kernels are compiled at every start: Numba finds no folder to keep them in; set NUMBA_CACHE_DIR")
        return False
    return True


OPTIONS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy", "cache": _can_cache()}
_POINTER = numba_types.uint64
_COUNT = numba_types.int32
RUN = numba_types.void(_POINTER, _POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _POINTER, _COUNT)
SETUP = numba_types.void(_POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _COUNT, _COUNT)

_DTYPES = {
    "float32": (np.float32, types.FLOAT),
    # The plugin refuses to declare float16, so it is declared as the integers that hold its bits.
    "float16": (np.uint16, types.UINT16),
    "uint8": (np.uint8, types.UINT8),
}


def kept_as(dtype: str) -> type[Any]:
    """The type of the array that a kernel writes an image of a recipe's dtype to."""
    return _DTYPES[dtype][0]


def sources(*modules: ModuleType) -> str:
    """What a compiled kernel is made of beside its own file, which is all that Numba's cache looks at."""
    return "".join(inspect.getsource(module) for module in modules)


def compile_kernel(function: Callable[..., None]) -> Any:  # noqa: ANN401
    """A function compiled to the signature `RUN`, or taken from Numba's cache. It says so before it compiles."""
    with install_listener("numba:compile", _Compiling()):
        return cfunc(RUN, **OPTIONS)(function)


class _Compiling(Listener):  # type: ignore[misc]
    """Hears that a function is compiled, which none is that comes from the cache."""

    def on_start(self, event: Any) -> None:  # noqa: ANN401
        _say_that_it_takes_long()

    def on_end(self, event: Any) -> None:  # noqa: ANN401
        pass


@cache  # once in a process
def _say_that_it_takes_long() -> None:
    kept = ", once on this machine" if OPTIONS["cache"] else ""
    _log.warning("compiling the CPU kernels for this recipe takes 10 to 40 s%s", kept)


def call(
    run: Any,  # noqa: ANN401
    inputs: Sequence[DataNode],
    in_types: Sequence[Any],
    ins_ndim: Sequence[int],
    dtype: str,
) -> DataNode:
    """An image of three dimensions, by a function that Numba compiled to the signature `RUN`, sample by sample.

    Args:
        inputs: at most six, of `in_types` and `ins_ndim`. The last holds nothing, (0, a, b, c): its dimensions tell
            the kernel the output's, (a, b, c).
        dtype: "float32", "float16", "uint8".
    """
    operator = compiled_operator()(
        run_fn=run,
        setup_fn=_setup,
        out_types=[_DTYPES[dtype][1]],
        in_types=list(in_types),
        outs_ndim=[3],
        ins_ndim=list(ins_ndim),
    )
    image = operator(*inputs)
    return fn.reinterpret(image, dtype=types.FLOAT16) if dtype == "float16" else image


@intrinsic  # type: ignore[untyped-decorator]
def as_pointer(typing: Any, address: Any) -> Any:  # noqa: ANN401
    """An address, an integer of 64 bits, as a pointer that `carray` takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        return builder.inttoptr(arguments[0], context.get_value_type(numba_types.voidptr))

    return numba_types.voidptr(address), generate


@njit(boundscheck=False, error_model="numpy")  # type: ignore[untyped-decorator]
def output(out_pointer: int, out_shapes: int) -> Any:  # noqa: ANN401
    """(pointer, shape) of the output."""
    shapes = carray(as_pointer(out_shapes), 1, np.int64)
    shape = carray(as_pointer(shapes[0]), 3, np.int64)
    return carray(as_pointer(out_pointer), 1, np.int64)[0], shape


@cfunc(SETUP, **OPTIONS)  # type: ignore[untyped-decorator]
def _setup(out_shapes: int, out_dims: int, outs: int, in_shapes: int, in_dims: int, ins: int, samples: int) -> None:
    outputs = carray(as_pointer(out_shapes), samples, np.int64)
    inputs = carray(as_pointer(in_shapes), (ins, samples), np.int64)
    for sample in range(samples):
        shape = carray(as_pointer(outputs[sample]), 3, np.int64)
        like_output = carray(as_pointer(inputs[ins - 1, sample]), 4, np.int64)
        for dimension in range(3):
            shape[dimension] = like_output[dimension + 1]
