"""The check that the same samples give the same pixels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gpuloader.tools.verify.comparing import IMAGES, PLAIN, Bad, Images, few_samples, load
from gpuloader.tools.verify.result import Looks, Outcome, Subject


def repeats(subject: Subject) -> Looks:
    """The same samples with other batches, after a resume, and whatever else the GPU does."""
    options: dict[str, Any] = {"preset": PLAIN, "sampling": few_samples(subject)}
    run = partial(load, subject.tar, subject.device_id, **options)
    expected, _ = run()
    ways = {
        "again": run,
        "one by one": partial(run, 1),
        "in batches of 5": partial(run, 5),
        "in one batch": partial(run, IMAGES),
        "resumed after 7 samples": partial(run, delivered=min(7, subject.samples - 1)),
    }
    if subject.device_id is not None:
        ways["on a stream of its own"] = partial(run, stream=True)
        ways["let go under a busy stream"] = partial(run, busy=True)
    for name, way in ways.items():
        yield name, partial(_repeat, expected, way)


def _repeat(expected: Images, way: Callable[[], tuple[Images, Bad]]) -> Outcome:
    images, _ = way()
    different = [
        key
        for key, views in images.items()
        if not all(torch.equal(one, other) for one, other in zip(views, expected[key], strict=True))
    ]
    found = f"{len(different)} of {len(images)} images differ" if different else f"{len(images)} images are equal"
    return Outcome(found, "equal bit for bit", not different and bool(images))
