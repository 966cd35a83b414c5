"""Runs a loader in a process of its own: an image that ends the process is a failed test, not the end of the tests."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from gpuloader import GPULoader
from gpuloader.errors import BadImageError

SIZE, RESIZE = 32, 36


@dataclass
class Delivered:
    """What a loader gave in one epoch, in plain types.

    Attributes:
        length: what `len(loader)` says.
        rows: samples in each batch.
        images: (key, image) of each valid one, as (3, 32, 32) uint8.
        invalid: how many replacements there were.
        bad: the keys in `stats().bad`.
        log: the messages about bad images.
        error: shard, key, offset and cause of the BadImageError that ended it.
    """

    length: int
    rows: list[int] = field(default_factory=list)
    images: list[tuple[str, np.ndarray]] = field(default_factory=list)
    invalid: int = 0
    bad: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    error: tuple[str, str, int, str] | None = None


def process() -> ProcessPoolExecutor:
    """One process, which does not inherit threads of DALI's by a fork."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def deliver(
    tar: Sequence[Path],
    batch_size: int,
    keys: Sequence[str],
    device_id: int | None = None,
    **kwargs: Any,  # noqa: ANN401
) -> Delivered:
    """One epoch of evaluation, 32 pixels square, in values from 0 to 255; keys are those of all samples, in order."""
    log = _Messages()
    logging.getLogger("gpuloader").addHandler(log)
    overrides = {"CenterCrop": {"size": SIZE}, "Resize": {"size": RESIZE}, "dtype": "uint8", "Normalize": None}
    arguments = {"preset": {"imagenet_eval": overrides}, **kwargs}
    try:
        with GPULoader(list(tar), batch_size, device_id, output="dict", label_from=None, **arguments) as loader:
            run = Delivered(len(loader), log=log.messages)
            try:
                for batch in loader:
                    valid = batch["valid"].tolist()
                    images = batch["image"].cpu().numpy().copy()
                    run.rows.append(len(images))
                    run.images += [row[:2] for row in zip(batch["key"], images, valid, strict=True) if row[2]]
                    run.invalid += valid.count(False)
            except BadImageError as error:
                run.error = (error.shard, error.key, error.offset, error.cause)
            run.bad = [keys[sample] for sample in loader.stats().bad]
            return run
    finally:
        logging.getLogger("gpuloader").removeHandler(log)


def deliver_each(tars: Sequence[Sequence[Path]], batch_size: int, **kwargs: Any) -> list[Delivered]:  # noqa: ANN401
    """One epoch of each."""
    return [deliver(tar, batch_size, (), **kwargs) for tar in tars]


class _Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if (message := record.getMessage()).startswith("bad image"):
            self.messages.append(message)
