"""Files whose headers claim gigabytes: what they take, and files that are gigabytes."""

from __future__ import annotations

import re
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from bad_images import PNG, chunk, hostile, inserted_chunk
from delivering import process
from making import jpeg, write_shard

from gpuloader import BadImages, Compose, GPULoader, Sampling
from gpuloader.errors import BadImageError, DataError
from gpuloader.shards import Arena, ShardSet
from gpuloader.tools.check import check_shards
from gpuloader.tools.decoder_process import WholeImages
from gpuloader.tools.show import Gallery
from gpuloader.transforms import CenterCrop

pytestmark = pytest.mark.slow(kept=2, of="hostile images")

LARGE = 5 << 30  # more than one read gives
CAUSE = "it has 5,368,709,120 bytes, more than 268,435,456"
MOST_MIB = 64


def taken_mib(files: dict[str, bytes]) -> dict[str, int]:
    """What refusing each file takes at its peak, or decoding it where the gate lets it pass."""
    decoder = WholeImages(1, 1, None)
    decoder.trial.check_machine()
    taken = {}
    for name, data in files.items():
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        before = peak_mib()
        decoder.bad([{0: np.frombuffer(data, np.uint8)}])
        taken[name] = peak_mib() - before
    return taken


def peak_mib() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) >> 10


def test_a_hostile_header_takes_no_memory() -> None:
    texts = inserted_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(7_900_000)))[33 : -len(PNG) + 33]
    files = {**hostile(), "png-texts": PNG[:33] + 100 * texts + PNG[33:]}
    with process() as executor:
        taken = executor.submit(taken_mib, files).result()
    assert {name: mib for name, mib in taken.items() if mib > MOST_MIB} == {}


@pytest.fixture(scope="module")
def large() -> bytes:
    """A PNG of a hundred million black pixels, each of one bit."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 10_000, 9999, 1, 0, 0, 0, 0))
    return PNG[:8] + header + chunk(b"IDAT", zlib.compress(bytes(9999 * 1251))) + PNG[-12:]


def test_a_batch_of_large_images_is_refused_image_by_image(large: bytes, tmp_path: Path) -> None:
    images = [large] * 12 + [jpeg(40, 40)] * 4
    tar = write_shard(tmp_path / "a.tar", [{"__key__": f"{row:02d}", "jpg": data} for row, data in enumerate(images)])
    for batch_size in (4, 16):
        with loader(tar, batch_size, on_error=BadImages(replace=True, max_share=1)) as batches:
            assert [valid for batch in batches for valid in batch["valid"].tolist()] == 12 * [False] + 4 * [True]
            assert sorted(batches.stats().bad) == [*range(12)]
            assert all("`max_pixels: 99990000`" in cause for cause in batches.stats().bad.values())


def test_large_images_are_decoded_where_the_recipe_allows_them(large: bytes) -> None:
    with pytest.raises(DataError, match="set `max_pixels: 99990000` in it"):
        Compose([CenterCrop(4)], dtype="uint8")(large)
    assert (Compose([CenterCrop(4)], dtype="uint8", max_pixels=100_000_000)(large) == 0).all()


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tar of some kB on the disk: the image, and a component, of the second sample have 5 GiB of nothing."""
    path = tmp_path_factory.mktemp("sparse") / "sparse.tar"
    small = jpeg(40, 40)
    with path.open("wb") as file:
        for name, size in (("0.jpg", 0), ("1.jpg", LARGE), ("2.jpg", 0), ("2.txt", LARGE), ("3.jpg", 0)):
            member = tarfile.TarInfo(name)
            member.size = size or len(small)
            file.write(member.tobuf(tarfile.GNU_FORMAT) + (b"" if size else small))
            end = file.tell() + size
            file.seek(end + -end % 512)
        file.truncate(file.tell() + 1024)
    return path


def loader(tar: Path, batch_size: int = 4, **options: object) -> GPULoader:
    overrides = {"CenterCrop": {"size": 32}, "Resize": {"size": 36}}
    given = {"preset": {"imagenet_eval": overrides}, "label_from": None, "output": "dict"}
    return GPULoader(tar, batch_size, None, **given, **options)


def test_an_image_of_gigabytes_is_bad_and_not_read(sparse: Path) -> None:
    with loader(sparse, on_error=BadImages(replace=True, max_share=1)) as batches:
        [batch] = batches
        assert batch["valid"].tolist() == [True, False, True, True]
        assert dict(batches.stats().bad) == {1: CAUSE}
    with loader(sparse) as batches, pytest.raises(BadImageError, match=CAUSE) as caught:
        next(iter(batches))
    assert caught.value.key == "1"
    views = ShardSet.open([sparse]).read_images(np.arange(4), Arena())
    assert [len(view) > 0 for view in views] == [True, False, True, True]
    assert [(bad.key, bad.cause) for bad in check_shards(sparse).of("bad")] == [("1", CAUSE)]
    with pytest.raises(BadImageError, match=CAUSE):
        Gallery(sparse, label_from=None).size(1)


def test_a_component_of_gigabytes_is_named_and_makes_its_sample_bad(sparse: Path) -> None:
    options = {"fields": ["txt"], "sampling": Sampling(subset=[2])}
    with loader(sparse, **options) as batches, pytest.raises(BadImageError, match=CAUSE) as caught:
        next(iter(batches))
    assert caught.value.key == "2"
    with pytest.raises(DataError, match=rf"\.txt component of '2' .*: {CAUSE}"):
        ShardSet.open([sparse]).read_component(2, "txt")
