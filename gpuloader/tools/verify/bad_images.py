"""The check of damaged images."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gpuloader.errors import BadImageError
from gpuloader.tools.verify.comparing import BATCH_SIZE, WIDER, compare, load, load_both
from gpuloader.tools.verify.pictures import jpeg, tar_of
from gpuloader.tools.verify.result import Looks, Outcome, Subject


def bad_images(subject: Subject) -> Looks:
    """Damaged images are named, and cost no other image."""
    bad = {2: jpeg(2)[:-30], 5: _with_broken_table(jpeg(5)), 11: b"no image"}
    with tar_of([bad.get(number) or jpeg(number) for number in range(BATCH_SIZE)]) as tar:
        (ours, our_bad), (theirs, _) = load_both(tar, subject.device_id, preset="raw_uint8")
        found = ", ".join(map(str, sorted(our_bad))) or "none"
        yield "replaced", partial(Outcome, found, "2, 5, 11", our_bad.keys() == bad.keys())
        yield "the other images", partial(compare, subject, ours, theirs, WIDER)
        yield "raised", partial(_raised, subject, tar)


def _raised(subject: Subject, tar: Path) -> Outcome:
    named = "none"
    try:
        load(tar, subject.device_id, on_error="raise", preset="raw_uint8")
    except BadImageError as error:
        named = error.key
    return Outcome(named, "02", named == "02")


def _with_broken_table(jpeg: bytes) -> bytes:
    """With an impossible table of Huffman codes, which no header tells of."""
    data, table = bytearray(jpeg), jpeg.index(b"\xff\xc4")
    data[table + 5 : table + 21] = bytes([255] * 16)
    return bytes(data)
