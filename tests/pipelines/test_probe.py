"""Which ways of decoding work: what is made of what the process said, and the process itself, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import pytest
from known_faults import is_known_of_regions

from gpuloader.errors import DeviceError
from gpuloader.images.header import image_header
from gpuloader.pipelines import probe as module
from gpuloader.pipelines.probe import Found, decide, probe

pytestmark = pytest.mark.slow(kept=14, of="probe")

GOOD = {"levels": 1.4}
BLACK = {"levels": 117.0}
FAILS = {"error": "Error in Mixed operator `fn.decoders.image_slice`,\n\nencountered:\n\nnvImageCodec failure: '#8'"}
LACKS = {"error": "Error in Mixed operator `fn.decoders.image`,\n\nencountered:\n\nCUDA allocation failed"}
Answers: TypeAlias = list[dict[str, Any]]
WELL = "exit status 0"


@pytest.mark.parametrize(
    ("said", "end", "region", "hw_load", "text"),
    [  # in the order of TRIALS: whole without, whole with engines, regions without, regions with engines
        ([GOOD, GOOD, GOOD, GOOD], WELL, True, 1, "regions; by engines, if there are any"),
        (
            [GOOD, GOOD],
            "SIGSEGV",
            False,
            1,
            "whole images, not regions: not tried, as the process had ended; by engines, if there are any",
        ),
        (
            [GOOD, GOOD, FAILS, FAILS],
            WELL,
            False,
            1,
            "whole images, not regions: DALI's decoder fails on it: nvImageCodec failure: '#8'; by engines, if th...",
        ),
        (
            [GOOD, BLACK, GOOD, GOOD],
            WELL,
            True,
            0,
            "regions; no engine: an image is off by 117 of 255 levels",
        ),
        ([GOOD, BLACK, FAILS, GOOD], WELL, False, 0, None),  # regions by engines alone are of no use then
        ([GOOD, GOOD, FAILS, GOOD], WELL, True, 1, None),
        (
            [GOOD],
            "stopped after 180 seconds",
            False,
            0,
            "whole images, not regions: not tried, as the process had ended; "
            "no engine: it ends the process (stopped after 180 seconds)",
        ),
    ],
)
def test_what_is_taken_is_what_works(said: Answers, end: str, region: bool, hw_load: int, text: str | None) -> None:
    found = decide(said, end)
    assert (found.region(found.hw_load), found.hw_load) == (region, hw_load)
    assert text is None or str(found).startswith(text.removesuffix("..."))


@pytest.mark.parametrize(
    ("said", "end", "message"),
    [
        ([], "SIGSEGV", r"it ends the process \(SIGSEGV\)"),
        ([], "exit status 1: no CUDA-capable device is detected", "no CUDA-capable device"),
        ([FAILS, GOOD, GOOD, GOOD], WELL, "nvImageCodec failure: '#8'"),
        ([BLACK, GOOD, GOOD, GOOD], WELL, "off by 117"),
        ([GOOD, GOOD, LACKS], WELL, "CUDA allocation failed"),  # which says nothing of the decoder
    ],
)
def test_where_nothing_can_be_found_out_the_machine_is_to_blame(said: Answers, end: str, message: str) -> None:
    with pytest.raises(DeviceError, match=rf"(?s){message}.*driver .*DALI .*Decoder\(region=False, hw_load=0\)"):
        decide(said, end)


@pytest.mark.parametrize(
    ("problems", "hw_load", "region"),
    [
        (("", "", "", ""), 0.65, True),
        (("", "", "x", ""), 0.65, False),  # a part of the batch goes to each
        (("", "", "x", ""), 0.0, False),
        (("", "", "", "x"), 0.0, True),
    ],
)
def test_regions_must_work_with_the_share_that_is_asked_for(
    problems: tuple[str, ...], hw_load: float, region: bool
) -> None:
    assert Found(problems).region(hw_load) == region


@pytest.mark.parametrize(
    ("problems", "version", "known"),
    [
        (("", "", "it ends the process (SIGSEGV)", "not tried, as the process had ended"), "0.9.0.20", True),
        (("", "", "DALI's decoder fails on it: nvImageCodec failure: '#8'", "x"), "0.9.0.20", True),
        (("", "", "", "it ends the process (SIGSEGV)"), "0.9.0.20", True),
        (("", "", "it ends the process (SIGSEGV)", ""), "0.10.0.1", False),  # nobody has reported that
        (("", "it ends the process (SIGSEGV)", *["not tried, as the process had ended"] * 2), "0.9.0.20", False),
        (("", "", "it ends the process (exit status 1: an error of ours)", ""), "0.9.0.20", False),
        (("", "", "an image is off by 117 of 255 levels", ""), "0.9.0.20", False),
    ],
)
def test_on_a_gpu_only_a_known_fault_of_the_decoder_excuses_a_test(
    monkeypatch: pytest.MonkeyPatch, problems: tuple[str, ...], version: str, known: bool
) -> None:
    monkeypatch.setattr("known_faults.decoder_versions", lambda: {"nvImageCodec": version})
    assert is_known_of_regions(Found(problems)) == known


def test_all_works_on_the_cpu() -> None:
    assert probe(None) == Found(("", "", "", ""))


BROKEN = """
import os
from nvidia.dali import fn

image, image_slice = fn.decoders.image, fn.decoders.image_slice

def black(*args, hw_decoder_load, **options):
    return image(*args, **options) * (0 if hw_decoder_load else 1)

fn.decoders.image = black
fn.decoders.image_slice = lambda *args, **options: os.kill(os.getpid(), 11)
"""


def test_a_decoder_that_gives_black_or_ends_the_process_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    whole, engine, regions, _ = probe(None).problems
    assert whole == ""
    assert engine.startswith("an image is off by 1")  # more than 100 levels
    assert regions == "it ends the process (SIGSEGV)"


BROKEN_FOR_ONE = """
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline

image, run, by_engines = fn.decoders.image, Pipeline.run, []

def noting(*args, hw_decoder_load, **options):
    by_engines.append(hw_decoder_load)
    return image(*args, **options)

class Black:
    as_cpu = lambda self: self
    at = lambda self, row: 0

def black_alone(self):
    outputs = run(self)
    return [Black()] if by_engines[-1] and len(outputs[0]) == 1 else outputs

fn.decoders.image, Pipeline.run = noting, black_alone
"""


def test_batches_of_one_image_are_tried_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU with several engines, nvImageCodec 0.9 decodes a lone JPEG in another way than those of a batch."""
    (tmp_path / "sitecustomize.py").write_text(BROKEN_FOR_ONE)
    monkeypatch.syspath_prepend(tmp_path)
    found = probe(None)
    assert found.problems[0] == ""
    assert found.problems[1].startswith("an image is off by 1")  # more than 100 levels
    assert found.hw_load == 0


def test_a_process_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuloader.pipelines.probe.MOST_SECONDS", 0)
    with pytest.raises(DeviceError, match=r"it ends the process \(stopped after 0 seconds\)"):
        probe(None)


@pytest.mark.parametrize("restart_intervals", [True, False])
def test_jpegs_above_a_million_pixels_are_among_those_that_are_tried(restart_intervals: bool) -> None:
    """Another of nvJPEG's backends decodes them. Cut files are such with restart intervals."""
    files = [module._jpeg(number).tobytes() for number in range(module._IMAGES)]
    headers = [image_header(lambda count, offset, file=file: file[offset : offset + count]) for file in files]
    assert max(height * width for height, width, cuttable in headers if cuttable == restart_intervals) > 1_000_000
