"""`gpuloader info`, as a user runs it."""

import json
from pathlib import Path

from command_line import run
from making import write_samples


def test_it_draws_what_is_in_the_shards(tmp_path: Path) -> None:
    write_samples(tmp_path, 40, sizes=[(60, 80), (60, 80), (60, 80), (120, 160)])
    lines = run("info", tmp_path).stdout.splitlines()
    assert lines[0].startswith("40 samples in 2 shards, ")
    assert lines[1:4] == ["formats     jpg 40", "components  cls 40, jpg 40, json 40", "seekable    0 of 40 JPEGs"]
    assert "10 classes of 4 to 4 samples" in lines
    start = lines.index("image height, pixels: 60 to 120, median 60, mean 75")
    assert [lines[start + 1].split("█")[0].strip(), lines[start + 1].count("█")] == ["60 - 65", 30]
    assert lines[start + 8].count("█") == 10
    assert lines[start + 8].endswith(" 10")
    assert lines[-6].split() == ["index", *lines[-6].split()[1:-1], "host"]
    # Nine buffers of 9 bytes for each of 160 x 120 pixels.
    assert lines[-2] == "  decoder            1.56 MB  device, only on a GPU"
    # 10 images of 160 x 120 and 30 of 80 x 60, of three bytes a pixel: all are in a batch of 256.
    assert lines[-1].startswith("  largest part       1.01 MB  device, decoded whole; ")


def test_of_a_loaders_file_the_buckets_are_drawn(tmp_path: Path) -> None:
    write_samples(tmp_path, 40, sizes=[(60, 80), (60, 80), (60, 80), (60, 60)])
    loader = {"tar": str(tmp_path), "sampling": {"buckets": {"area": 64**2, "step": 16}}, "batch_size": 10}
    (tmp_path / "train.yaml").write_text(json.dumps(loader))  # JSON is YAML
    lines = run("info", tmp_path / "train.yaml").stdout.splitlines()
    # A picture of 60 x 80, resized to 80 columns, has 60 rows, of which 48 are shown.
    start = lines.index("2 of 3 buckets with samples; of the pictures 15.0% is cropped away")
    assert [line.replace("█", "").split() for line in lines[start + 1 : start + 3]] == [
        ["64", "x", "64", "10", "0.0%", "is", "cropped", "away"],
        ["48", "x", "80", "30", "20.0%", "is", "cropped", "away"],
    ]
    assert "memory of a loader, estimated (preset imagenet_train, batch size 10, prefetch 2)" in lines


def test_buckets_without_sizes_are_named_by_their_ratios(tmp_path: Path) -> None:
    write_samples(tmp_path, 40, sizes=[(60, 80), (60, 80), (60, 80), (60, 60)])
    (tmp_path / "train.yaml").write_text(json.dumps({"tar": str(tmp_path), "sampling": {"buckets": {"groups": 3}}}))
    lines = run("info", tmp_path / "train.yaml").stdout.splitlines()
    start = lines.index("2 of 8 buckets with samples, by width / height")
    found = [line.replace("█", "").split() for line in lines[start + 1 : start + 3]]
    assert found == [["1", "to", "1.26", "10"], ["1.26", "to", "1.59", "30"]]


def test_as_json(tmp_path: Path) -> None:
    write_samples(tmp_path, 40)
    printed = json.loads(run("info", tmp_path, "--json", "--preset", "raw_uint8", "--batch-size", 10).stdout)
    assert printed["classes"][3] == {"label": 3, "name": None, "samples": 4}
    assert (printed["memory"]["output_bytes"], printed["buckets"]) == (4 * 10 * 3 * 224 * 224, None)
