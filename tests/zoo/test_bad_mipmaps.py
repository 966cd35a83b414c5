"""Smaller copies of every bad kind: none ends the run, takes another sample with it, or is delivered in silence."""

from __future__ import annotations

import io
from pathlib import Path

from bad_images import bad_kinds
from delivering import deliver, process
from making import encoded, jpeg, picture, write_shard
from PIL import Image

SIDE = 96
BATCH = 16


def mutated(copy: bytes, seed: int) -> bytes:
    """A copy with a byte of another value in each of eight places behind its header."""
    data = bytearray(copy)
    for place in range(8):
        data[2 + (seed * 7919 + place * 104_729) % (len(data) - 2)] ^= 1 + seed % 255
    return bytes(data)


def test_no_mipmap_ends_the_run_or_takes_another_sample_with_it(tmp_path: Path) -> None:
    large = jpeg(300, 400)
    copy = encoded(Image.open(io.BytesIO(large)).resize((128, SIDE)), "JPEG", subsampling="4:4:4", quality=90)
    mipmaps = {kind.name: kind.data for kind in bad_kinds()}
    mipmaps |= {f"mutated-{seed:02d}": mutated(copy, seed) for seed in range(40)}
    mipmaps |= {"of another size": encoded(picture(64, 64), "JPEG"), **{f"whole-{n}": copy for n in range(5)}}
    keys = sorted(mipmaps)
    samples = [{"__key__": key, "jpg": large, f"mip{SIDE}": mipmaps[key]} for key in keys]
    shard = write_shard(tmp_path / "copies.tar", samples)
    evaluation = {"Resize": {"size": 36}, "CenterCrop": {"size": 32}, "dtype": "uint8", "Normalize": None}
    recipe = {"imagenet_eval": {**evaluation, "mipmaps": 2}}
    with process() as other:
        on_error = {"replace": True, "max_share": 1}
        run = other.submit(deliver, [shard], BATCH, keys, preset=recipe, on_error=on_error).result()
    assert run.error is None
    assert sum(run.rows) == len(samples)
    delivered = {key for key, _ in run.images}
    assert delivered | set(run.bad) == set(keys)
    assert not delivered & set(run.bad)
    assert {f"whole-{n}" for n in range(5)} <= delivered
    assert {"of another size", *(kind.name for kind in bad_kinds())} <= set(run.bad)
