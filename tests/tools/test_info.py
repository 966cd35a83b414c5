"""`info`: what is in shards, by their indexes alone."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_images import turned
from gpu_graph import GPU, load_on
from making import SIZES, encoded, jpeg, picture, write_samples, write_shard

from gpuloader import BadImages, Buckets, Compose, Decoder, GPULoader
from gpuloader import transforms as T
from gpuloader.errors import ConfigError, LabelError
from gpuloader.loading.loader import run_of
from gpuloader.loading.memory import estimate_memory, excess_of_a_part
from gpuloader.loading.parts import Parts
from gpuloader.recipe import load_preset
from gpuloader.shards import ShardSet, write_quarantine
from gpuloader.tools.info import ClassCount, Distribution, describe_shards
from gpuloader.tools.show import Gallery


def test_the_bytes_of_a_node_are_those_of_its_shards(tmp_path: Path) -> None:
    tars = write_samples(tmp_path, 480, shards=48)
    sizes = [tar.stat().st_size for tar in tars]
    for nodes in (1, 4, 6):
        info = describe_shards(tars, nodes=nodes)
        assert info.node_bytes is not None
        assert info.times_read is not None
        assert sum(sizes) / nodes <= info.node_bytes <= sum(sizes) / nodes + 2 * max(sizes)
        assert 1 <= info.times_read <= info.node_bytes * nodes / sum(sizes)
        assert info.node_advice is None
    assert describe_shards(tars).node_bytes is describe_shards(tars).times_read is None
    with pytest.raises(ConfigError, match="nodes=0: allowed is an integer from 1 to"):
        describe_shards(tars, nodes=0)


@pytest.mark.parametrize(
    ("nodes", "batch_size", "groups", "times", "advice"),
    [
        (3, 32, None, 1.12, "groups=12"),  # 16 groups of a step of 768
        (3, 32, 12, 1.0, None),
        (2, 32, 1, 2.0, "groups=16"),
        (96, 1, None, 6.0, "groups=96) with at least 96 shards"),
    ],
)
def test_nodes_that_share_groups_read_more(
    tmp_path: Path, nodes: int, batch_size: int, groups: int | None, times: float, advice: str | None
) -> None:
    tars = write_samples(tmp_path, 96, shards=48, sizes=[(8, 8)])
    info = describe_shards(tars, nodes=nodes, batch_size=batch_size, sampling={"groups": groups})
    assert info.times_read == pytest.approx(times, rel=0.05)
    assert info.node_advice is advice or (advice and advice in str(info.node_advice))


def test_samples_bytes_and_components_are_counted(tmp_path: Path) -> None:
    tars = write_samples(tmp_path, 40, shards=2)
    png = encoded(picture(20, 30), "PNG")
    rows = [
        {"__key__": "a", "png": png, "txt": b"a text"},
        {"__key__": "b", "png": png, "jpg": jpeg(8, 8)},  # of two images, jpg is the sample's
        {"__key__": "c", "jpeg": encoded(picture(32, 64), "JPEG", restart_marker_blocks=2)},
        {"__key__": "stray", "txt": b"no image"},
    ]
    tars.append(write_shard(tmp_path / "train-0002.tar", rows))
    info = describe_shards(tars)
    assert (info.shards, info.samples, info.stray_count) == (3, 43, 1)
    assert info.shard_bytes == sum(tar.stat().st_size for tar in tars)
    assert info.formats == {"jpg": 41, "png": 1, "jpeg": 1}
    assert (info.jpegs, info.seekable) == (42, 1)
    assert info.components == {"jpg": 41, "cls": 40, "json": 40, "png": 2, "txt": 1, "jpeg": 1}


def test_pictures_that_are_not_stored_upright_are_counted(tmp_path: Path) -> None:
    rows = [
        {"__key__": f"{extension}{n}", extension: encoded(picture(8, 9), image_format, exif=turned(n))}
        for extension, image_format in (("jpg", "JPEG"), ("png", "PNG"))
        for n in range(9)  # 0 is none that EXIF has, 1 is upright
    ]
    assert describe_shards(write_shard(tmp_path / "a.tar", rows)).turned == 14
    assert describe_shards(write_samples(tmp_path / "plain", 4)).turned == 0


def test_sizes_are_spread_as_the_images_are(tmp_path: Path) -> None:
    info = describe_shards(write_samples(tmp_path, 40))
    heights, widths = np.array([SIZES[i % len(SIZES)] for i in range(40)]).T
    for spread, values in ((info.height, heights), (info.width, widths), (info.megapixels, heights * widths / 1e6)):
        assert spread is not None
        assert (spread.smallest, spread.largest) == (values.min(), values.max())
        assert (spread.median, spread.mean) == (np.median(values), pytest.approx(values.mean()))
        assert (spread.edges[0], spread.edges[-1]) == (values.min(), values.max())
        for lower, upper, count in zip(spread.edges, spread.edges[1:], spread.counts):
            last = upper == spread.edges[-1]
            assert count == ((values >= lower) & ((values < upper) | (last & (values == upper)))).sum()
    assert info.unknown_size == 0


@pytest.mark.parametrize(
    ("images", "spread"),
    [
        ([b"x"], Distribution(1, 1.0, 1.0, 1, (1.0, 1.0), (1,))),
        ([b"", b""], Distribution(0, 0.0, 0.0, 0, (0.0, 0.0), (2,))),
        ([b"x", b"xyz", b"x" * 4], Distribution(1, 3.0, 8 / 3, 4, (1.0, 2.0, 3.0, 4.0), (1, 0, 2))),
    ],
)
def test_a_spread_of_few_values_has_few_bins(tmp_path: Path, images: list[bytes], spread: Distribution) -> None:
    rows = [{"__key__": f"{number}", "jpg": image} for number, image in enumerate(images)]
    info = describe_shards(write_shard(tmp_path / "a.tar", rows))
    assert info.image_bytes == spread
    assert (info.height, info.width, info.megapixels, info.unknown_size) == (None, None, None, len(images))
    assert info.memory.decoded_bytes is None


# --- classes


def labelled(tmp_path: Path, *labels: bytes | None) -> Path:
    rows = [{"__key__": f"{n}", "jpg": jpeg(8, 8), **({"cls": c} if c else {})} for n, c in enumerate(labels)]
    return write_shard(tmp_path / "a.tar", rows)


def test_labels_are_counted_and_those_that_lack_are_too(tmp_path: Path) -> None:
    info = describe_shards(labelled(tmp_path, b"7", b"-1", b"7", None, b"cat"))
    assert info.classes == (ClassCount(-1, None, 1), ClassCount(7, None, 2))
    assert info.without_label == 2


@pytest.mark.parametrize(
    ("contents", "names"),
    [
        (('["cat", "dog"]', '["cat", "dog"]'), ("cat", "dog")),
        (('["cat", "dog"]', None), (None, None)),  # what the other folder's labels mean is not known
        (('["cat", "dog"]', "[0"), (None, None)),  # a warning says so
    ],
)
def test_names_are_those_that_a_loader_has_of_all_folders(
    tmp_path: Path, contents: tuple[str | None, ...], names: tuple[str | None, ...]
) -> None:
    tars = []
    for number, content in enumerate(contents):
        folder = tmp_path / str(number)
        folder.mkdir()
        tars.append(labelled(folder, b"0", b"1"))
        if content is not None:
            (folder / "classes.json").write_text(content)
    with GPULoader(tars, 2, None) as loader:
        assert (loader.classes or (None, None)) == names
    assert tuple(each.name for each in describe_shards(tars).classes) == names
    gallery = Gallery(tars, device_id=None)
    assert tuple(gallery.sample(sample).class_name for sample in (2, 3)) == names


def test_folders_are_classes_where_they_are_asked_for(tmp_path: Path) -> None:
    keys = ["cat/1", "dog/1", "cat/2"]
    tar = write_shard(tmp_path / "a.tar", [{"__key__": key, "jpg": jpeg(8, 8)} for key in keys])
    info = describe_shards(tar, label_from="folder")
    assert info.classes == (ClassCount(0, "cat", 2), ClassCount(1, "dog", 1))
    assert info.without_label == 0
    with pytest.raises(LabelError, match="are not in a folder"):
        describe_shards(labelled(tmp_path, b"1"), label_from="folder")


# --- memory


def test_the_memory_is_that_of_the_buffers(tmp_path: Path) -> None:
    tars = write_samples(tmp_path, 40, sizes=[(60, 80)])
    info = describe_shards(tars, preset="raw_uint8", batch_size=10, decoder={"prefetch": 3})
    memory = info.memory
    assert (memory.preset, memory.batch_size, memory.prefetch) == ("raw_uint8", 10, 3)
    # Of the pictures of 60 x 80 the middle 224 of 256 are decoded; 3 batches wait, one is made, one the loop has.
    assert info.image_bytes is not None
    assert memory.encoded_bytes == int(8 * 1.25 * 10 * info.image_bytes.mean)
    assert memory.output_bytes == 5 * 10 * 3 * 224 * 224
    assert memory.decoded_bytes is not None
    assert 2 * 10 * 3 * 52 * 52 <= memory.decoded_bytes <= 2 * 10 * 3 * 60 * 60
    assert memory.decoder_bytes == (8 + 1) * 9 * 60 * 80  # one buffer for each of 8 threads, and one more
    assert memory.index_bytes < sum(tar.with_name(tar.name + ".gpuidx").stat().st_size for tar in tars)


@pytest.mark.parametrize(
    ("device_id", "decoder", "pixels", "threads"),
    [
        (None, {"num_threads": 3}, 44 * 54, 3),  # two pixels more on each side, for the filter
        (GPU, {"num_threads": 3}, 44 * 54 + 60 * 80, 3),  # a region is cut from the whole image, and both are there
        (GPU, {"num_threads": 12, "region": True}, 44 * 54, 12),
    ],
)
def test_the_memory_is_that_of_what_the_device_decodes(
    tmp_path: Path, device_id: int | None, decoder: dict[str, Any], pixels: int, threads: int
) -> None:
    tars = write_samples(tmp_path, 8, sizes=[(60, 80)])
    with load_on(device_id, tars, 4, preset=Compose([T.CenterCrop((40, 50))]), decoder=decoder) as loader:
        run = run_of(loader)
        estimate = estimate_memory(run.shards, run.recipe, "", 4, run.decoder, run.parts)
    assert estimate.decoded_bytes == 2 * 4 * 3 * pixels
    assert estimate.decoder_bytes == (threads + 1) * 9 * 60 * 80


OWN_CODE_BEFORE = [T.Apply(np.flipud), T.Resize((15, 20))]


@pytest.mark.parametrize(
    ("extension", "recipe", "prefetch", "files", "decoded", "of_one"),
    [
        ("jpg", {}, 2, 6, 2 * 60 * 80, 60 * 80),
        ("jpg", {"oversampling": 2}, 2, 1, 2 * 30 * 40, 30 * 40),  # the files are gone when they are decoded
        ("jpg", {"oversampling": 1}, 2, 1, 2 * 15 * 20, 15 * 20),
        ("jpg", {"oversampling": 2}, 4, 1, 4 * 30 * 40, 30 * 40),  # in so many batches they are decoded ahead
        ("jpg", {"oversampling": 2.1}, 2, 6, 2 * 60 * 80, 60 * 80),  # they are too small: it works as without it
        ("png", {"oversampling": 1}, 2, 6, 2 * 60 * 80, 60 * 80),
        ("jpg", {"transforms": OWN_CODE_BEFORE, "oversampling": 1}, 2, 6, 2 * 60 * 80, 60 * 80),  # it sees all pixels
    ],
)
def test_the_memory_is_that_of_the_sizes_at_which_jpegs_are_decoded(
    tmp_path: Path, extension: str, recipe: dict[str, Any], prefetch: int, files: int, decoded: int, of_one: int
) -> None:
    image = encoded(picture(60, 80), {"jpg": "JPEG", "png": "PNG"}[extension])
    tar = write_shard(tmp_path / "a.tar", [{"__key__": f"{n}", extension: image, "cls": b"0"} for n in range(8)])
    preset = Compose(**{"transforms": [T.Resize((15, 20))], **recipe})
    memory = describe_shards(tar, preset=preset, batch_size=4, decoder={"prefetch": prefetch}).memory
    assert memory.encoded_bytes == int(files * 1.25 * 4 * len(image))
    assert memory.decoded_bytes == 4 * 3 * decoded
    assert memory.worst_part_bytes == 4 * 3 * of_one


def test_the_memory_is_that_of_the_largest_epoch(tmp_path: Path) -> None:
    tars = write_samples(tmp_path, 4, sizes=[(60, 80)])
    growing = Compose([T.RandomResizedCrop({0: 16, 2: 64, 4: 48})])
    assert growing.largest_epoch == 2
    estimate = describe_shards(tars, preset=growing, batch_size=4, decoder={"prefetch": 3}).memory
    assert estimate.output_bytes == 5 * 4 * 64 * 64 * 3 * 4
    with GPULoader(tars, 4, "cpu", preset=growing) as loader:
        assert run_of(loader).largest.shapes == [(64, 64)]
    padded = Compose([T.Resize({0: 30, 2: 60})], batch={"pad": 32})
    estimate = describe_shards(tars, preset=padded, batch_size=4, decoder={"prefetch": 3}).memory
    assert estimate.output_bytes == 5 * 4 * 64 * 96 * (3 * 4 + 1)  # a byte for `pixel_mask`


def test_images_that_the_gate_refuses_take_no_memory(tmp_path: Path) -> None:
    bomb = bytearray(jpeg(60, 80))
    frame = bomb.index(b"\xff\xc0")
    bomb[frame + 5 : frame + 9] = (32_000).to_bytes(2, "big") * 2
    write_shard(tmp_path / "a.tar", [{"__key__": "a", "jpg": jpeg(60, 80)}])
    write_shard(tmp_path / "b.tar", [{"__key__": "a", "jpg": jpeg(60, 80)}, {"__key__": "bomb", "jpg": bytes(bomb)}])
    one, two = (describe_shards(tmp_path / name).memory.decoded_bytes for name in ("a.tar", "b.tar"))
    assert one == two


@pytest.mark.parametrize(
    ("batch_size", "max_pixels", "memory_bytes", "said"),
    [
        (3, 100_000, 345_599, "lower batch_size to 2, or the recipe's max_pixels"),
        (3, 100_000, 345_600, None),
        (3, 100_000, 115_199, "lower the recipe's max_pixels"),  # one image is too much
        (3, 19_199, 86_400, None),  # the larger ones are refused, and take nothing
        (3, 19_199, 86_399, r"lower batch_size to 2, .*max_pixels=19199; the largest image has 4,800 pixels"),
    ],
)
def test_what_a_batch_can_take_is_bounded(
    tmp_path: Path, batch_size: int, max_pixels: int, memory_bytes: int, said: str | None
) -> None:
    recipe = load_preset("imagenet_train", {"max_pixels": max_pixels})
    shards = ShardSet.open(write_samples(tmp_path, 40, sizes=[(60, 80), (120, 160)]))
    parts = Parts.on("cpu", shards, recipe, batch_size, num_threads=1)
    excess = excess_of_a_part(recipe, batch_size, parts, memory_bytes)
    taken = estimate_memory(shards, recipe, "", batch_size, Decoder(), parts).worst_part_bytes
    assert taken == 3 * batch_size * (4_800 if max_pixels < 19_200 else 19_200)
    assert (excess is None) == (said is None)
    assert said is None or re.search(said, excess or "")


def test_a_loader_warns_once_of_what_a_batch_can_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tars = write_samples(tmp_path, 8, sizes=[(60, 80)])
    with GPULoader(tars, 4, None, preset="raw_uint8") as loader:
        assert len(list(loader)) == 2
    assert caplog.messages == []
    monkeypatch.setattr("gpuloader.loading.memory.available_memory_bytes", lambda: 100_000)
    with GPULoader(tars, 4, None, preset="raw_uint8") as loader:
        assert len(list(loader)) == 2  # it is no more than a warning
    [message] = caplog.messages
    assert "57.6 kB, over half of the 100 kB of memory: lower batch_size to 3, or" in message


def test_nothing_but_the_indexes_is_read(tmp_path: Path) -> None:
    tars = write_samples(tmp_path, 10)
    before = describe_shards(tars)
    for tar in tars:  # as many bytes as before, at the same time, but others
        stat = tar.stat()
        tar.write_bytes(bytes(stat.st_size))
        os.utime(tar, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert describe_shards(tars) == before


def test_buckets_count_known_bad_images_as_a_loader_does(tmp_path: Path) -> None:
    sizes = [(60, 80)] * 3 + [(80, 40)] * 4 + [(40, 80)] * 2
    images = [b"no image", jpeg(30, 80), *(jpeg(*size) for size in sizes)]
    rows = [{"__key__": f"{i}", "jpg": data, "cls": b"0"} for i, data in enumerate(images)]
    tar = write_shard(tmp_path / "a.tar", rows)
    write_quarantine(known := tmp_path / "bad.jsonl", ShardSet.open([tar]), {0: "no image", 1: "cut"})
    buckets = Buckets(sizes=((48, 64), (48, 24), (24, 48)))
    sampling, on_error = {"buckets": buckets}, BadImages(known=known)
    found = describe_shards(tar, sampling=sampling, on_error=on_error).buckets
    assert found is not None
    assert [each.cropped for each in found] == [0, 0, 0]  # the picture of 30 x 80 is replaced
    with GPULoader(tar, 1, None, output="dict", sampling=sampling, on_error=on_error) as loader:
        delivered = Counter((*batch["image"].shape[2:],) for batch in loader)
    assert {(each.height, each.width): each.samples for each in found} == delivered
    assert delivered == {(48, 64): 3, (48, 24): 5, (24, 48): 3}


def test_a_folder_is_described_as_its_shards_are(shards: list[Path], folder: Path) -> None:
    ours, theirs = describe_shards(folder, label_from="cls"), describe_shards(shards)
    assert replace(ours, shards=2, shard_bytes=theirs.shard_bytes, memory=theirs.memory) == theirs
    assert ours.shards == 1
