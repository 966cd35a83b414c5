"""Each test runs DALI itself: it fails where DALI does otherwise than gpuloader.internals.dali relies on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import nvidia.dali
import pytest
from making import damaged_jpeg
from numba import carray, cfunc
from nvidia.dali import fn, pipeline_def, types

from gpuloader.internals.dali import compiled_operator, decoder_cause, is_decode_failure, is_out_of_memory
from gpuloader.pipelines.kernels import compiled
from gpuloader.pipelines.kernels.compiled import as_pointer

OTHER_SIDE = f"DALI {nvidia.dali.__version__} with Numba {numba.__version__}"


def run(graph: Callable[[], Any]) -> np.ndarray:
    """What a graph gives for its one sample."""
    pipeline = pipeline_def(graph)(batch_size=1, num_threads=1, device_id=None)
    return np.array(pipeline.run()[0].as_cpu().at(0))


def message_of(graph: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as caught:
        run(graph)
    assert type(caught.value) is RuntimeError  # a type of its own would be a public way
    return str(caught.value)


# --- pipelines in a forked child

FORKS = """
import os, signal, sys
from nvidia.dali import fn, pipeline_def
from gpuloader.internals.dali import leak_after_fork

@pipeline_def(batch_size=1, num_threads=2, device_id=None)
def graph():
    return fn.random.uniform(range=[0, 1])

pipeline = graph()
pipeline.run()
if (child := os.fork()) == 0:
    signal.alarm(60)  # ends a child that waits for threads that it does not have
    leak_after_fork(pipeline)
    assert pipeline._pipe is None
    del pipeline
    sys.exit(7)  # and DALI's own hook runs
_, status = os.waitpid(child, 0)
pipeline.run()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_leaked_pipeline_keeps_no_child_from_ending_and_the_parent_goes_on() -> None:
    result = subprocess.run([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True, check=True)
    assert result.stdout == "7\n"


# --- the words of errors


def decode(data: bytes) -> Any:  # noqa: ANN401
    encoded = fn.external_source(lambda: [np.frombuffer(data, np.uint8)], dtype=types.UINT8, ndim=1)
    window = [np.array([0, 0], np.float32), np.array([8, 8], np.float32)]
    return fn.decoders.image_slice(encoded, *window, normalized_anchor=False, normalized_shape=False)


def black(**options: Any) -> Any:  # noqa: ANN401
    return fn.constant(idata=[0] * 12, shape=[2, 2, 3], dtype=types.UINT8, layout="HWC", **options)


@pytest.mark.parametrize(
    ("graph", "of_an_image", "of_memory", "said"),
    [
        (lambda: decode(damaged_jpeg()), True, False, ""),
        (lambda: decode(b"no image"), True, False, "nvImageCodec failure: '#4'"),
        (lambda: fn.slice(black(), [3], [3], axes=[0]), False, False, None),
        (lambda: fn.resize(black(), size=[1 << 23, 1 << 23]), False, True, None),
    ],
    ids=["damaged", "no image", "another operator", "memory"],
)
def test_what_an_error_is_of(graph: Callable[[], Any], of_an_image: bool, of_memory: bool, said: str | None) -> None:
    message = message_of(graph)
    assert is_decode_failure(message) == of_an_image, message
    assert is_out_of_memory(message) == of_memory, message
    if said is not None:
        assert decoder_cause(message) == said, message


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        # These come from GPUs.
        ("Error when executing Mixed operator ImageDecoder encountered:\nCUDA allocation failed", True),
        ('[nvjpeg_decoder.h:355] NVJPEG error "5" : NVJPEG_STATUS_ALLOCATOR_FAILURE', True),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("CUDA runtime API error cudaErrorMemoryAllocation (2)", True),
        ("nvImageCodec failure: '#8'", False),
        ("an illegal memory access was encountered", False),
        # This comes from a thread of DALI's.
        ("Error in thread 0: std::bad_alloc", True),
    ],
)
def test_errors_that_say_that_memory_is_out(message: str, expected: bool) -> None:
    assert is_out_of_memory(message) == expected


def test_a_decoder_that_lacks_memory_blames_no_image() -> None:
    decoder = "Error in CPU operator `nvidia.dali.fn.decoders.image_slice`,\n\nencountered:\n\n"
    assert is_decode_failure(decoder + "Failed to decode sample #3 : ")
    assert not is_decode_failure(decoder + "CUDA allocation failed")


# --- compiled functions as an operator


@cfunc(compiled.RUN)  # type: ignore[untyped-decorator]
def invert(
    out: int, out_shapes: int, out_dims: int, outs: int, inputs: int, in_shapes: int, in_dims: int, ins: int
) -> None:
    address, shape = compiled.output(out, out_shapes)
    pointers = carray(as_pointer(inputs), ins, np.int64)
    images = carray(as_pointer(pointers[0]), (shape[0], shape[1], shape[2]), np.uint8)
    results = carray(as_pointer(address), (shape[0], shape[1], shape[2]), np.uint8)
    for row in range(shape[0]):
        for column in range(shape[1]):
            for channel in range(shape[2]):
                results[row, column, channel] = 255 - images[row, column, channel]


def test_dali_calls_a_compiled_function_by_its_address() -> None:
    operator = compiled_operator()
    assert operator._run_fn_sig(None) == compiled.RUN  # another would end this process
    assert operator._setup_fn_sig(None) == compiled.SETUP
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)

    def graph() -> Any:  # noqa: ANN401
        like_output = types.Constant(np.zeros((0, *image.shape), np.uint8), device="cpu")
        inputs = (types.Constant(image, device="cpu"), like_output)
        return compiled.call(invert, inputs, [types.UINT8] * 2, [3, 4], "uint8")

    assert (run(graph) == 255 - image).all()
