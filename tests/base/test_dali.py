"""Each test runs DALI itself: it fails where DALI does otherwise than gpuloader.base.dali relies on."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali
import pytest
from making import damaged_jpeg, jpeg
from nvidia.dali import fn, pipeline_def, types

from gpuloader.base.dali import (
    call_compiled,
    change_where,
    decoder_cause,
    failed_row,
    is_cuda_failure,
    is_decode_failure,
    is_out_of_memory,
)
from gpuloader.pipelines.kernels.library import address_of
from gpuloader.recipe.program import PARAMETERS, Op

OTHER_SIDE = f"DALI {nvidia.dali.__version__}"


def run(graph: Callable[[], Any]) -> np.ndarray:
    """What a graph gives for its one sample."""
    pipeline = pipeline_def(graph)(batch_size=1, num_threads=1, device_id=None)
    return np.array(pipeline.run()[0].as_cpu().at(0))


def message_of(graph: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as caught:
        run(graph)
    assert type(caught.value) is RuntimeError  # a type of its own would be a public way
    return str(caught.value)


# --- conditions


@pytest.mark.parametrize("chosen", [[True, False, True], [False] * 3, [True] * 3])
def test_only_samples_for_which_the_condition_holds_are_changed(chosen: list[bool]) -> None:
    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def graph() -> Any:  # noqa: ANN401
        value, other, condition = fn.external_source(
            source=lambda: (
                [np.float32([1, 2]), np.float32([3]), np.float32([])],
                np.float32([10, 20, 30]),
                np.array(chosen),
            ),
            num_outputs=3,
        )
        return change_where(condition, lambda value, other: value + other, value, other)

    (result,) = graph().run()
    added = [10 * (row + 1) * yes for row, yes in enumerate(chosen)]
    assert [result.at(row).tolist() for row in range(3)] == [[1 + added[0], 2 + added[0]], [3 + added[1]], []]


# --- pipelines in a forked child

FORKS = """
import os, signal, sys
from nvidia.dali import fn, pipeline_def
from gpuloader.base.dali import leak_after_fork

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


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("bad", [[0], [3], [7], [2, 5], [6, 1], [0, 7], [3, 4]])
@pytest.mark.parametrize("region", [True, False])
def test_a_decoders_error_names_the_first_row_of_the_batch_that_failed(
    region: bool, bad: list[int], num_threads: int
) -> None:
    """The images differ in size, and the batch is smaller than the pipeline allows."""
    images = [np.frombuffer(damaged_jpeg() if row in bad else jpeg(60 + row, 80), np.uint8) for row in range(8)]

    @pipeline_def(batch_size=16, num_threads=num_threads, device_id=None)
    def graph() -> Any:  # noqa: ANN401
        encoded = fn.external_source(lambda: images, dtype=types.UINT8, ndim=1)
        window = {"start": [4, 4], "shape": [40, 30], "axes": [0, 1]}
        return fn.decoders.image_slice(encoded, **window) if region else fn.decoders.image(encoded)

    with pytest.raises(RuntimeError) as caught:
        graph().run()
    assert failed_row(str(caught.value)) == min(bad)


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


@pytest.mark.parametrize(
    ("message", "expected"),
    [  # as DALI's sources have them: none was seen here
        ("encountered:\n\nCUDA runtime API error cudaErrorIllegalAddress (700):\nan illegal memory access", True),
        ("CUDA driver API error CUDA_ERROR_ILLEGAL_ADDRESS (700)", True),
        ("CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory", False),
        ("encountered:\n\nFailed to decode sample #0 : nvImageCodec failure: '#8'", False),
    ],
)
def test_errors_that_leave_cuda_of_no_use(message: str, expected: bool) -> None:
    assert is_cuda_failure(message) == expected


def test_a_decoder_that_lacks_memory_blames_no_image() -> None:
    decoder = "Error in CPU operator `nvidia.dali.fn.decoders.image_slice`,\n\nencountered:\n\n"
    assert is_decode_failure(decoder + "Failed to decode sample #3 : ")
    assert not is_decode_failure(decoder + "CUDA allocation failed")


# --- C functions as an operator


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("_run_fn_sig", "address address address count address address address count count"),  # the last: of batches
        ("_setup_fn_sig", "address address count address address count count"),
    ],
)
def test_the_signatures_are_those_of_kernels_c(signature: str, expected: str) -> None:
    """As DALI's own class declares them, whose module is only read: it needs Numba."""
    plugin = Path(nvidia.dali.__file__).parent / "plugin" / "numba" / "__init__.py"
    [function] = [
        node
        for node in ast.walk(ast.parse(plugin.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == signature
    ]
    kinds = {"uint64": "address", "int32": "count"}
    declared = [
        kinds[node.attr] for node in ast.walk(function) if isinstance(node, ast.Attribute) and node.attr in kinds
    ]
    assert sorted(declared) == sorted(expected.split()), OTHER_SIDE


def test_dali_calls_c_functions_by_their_addresses() -> None:
    picture = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)

    def graph() -> Any:  # noqa: ANN401
        given = [
            picture,
            np.array([Op.INVERT], np.int32),
            np.zeros((1, PARAMETERS), np.float32),
            np.zeros(6, np.int32),
            np.array([1, 1, 1, *[0] * 8, 2], np.float32),
            np.zeros((0, *picture.shape[:2]), np.uint8),
        ]
        return call_compiled(
            address_of("augment"),
            address_of("setup_hwc"),
            [types.Constant(each, device="cpu") for each in given],
            [types.UINT8, types.INT32, types.FLOAT, types.INT32, types.FLOAT, types.UINT8],
            [each.ndim for each in given],
            types.UINT8,
        )

    assert (run(graph) == 255 - picture).all(), OTHER_SIDE
