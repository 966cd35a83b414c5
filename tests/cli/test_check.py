"""`gpuloader check`, as a user runs it."""

import json
from pathlib import Path

from bad_images import bad_kinds, zoo
from command_line import run
from making import jpeg, write_samples, write_shard


def test_every_bad_image_of_the_zoo_is_named_and_no_good_one(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / "zoo.tar", [{"__key__": kind.name, "jpg": kind.data} for kind in zoo()])
    result = run("check", tar, "--cpu", "--json", "--quarantine", tmp_path / "bad.jsonl")
    assert result.returncode == 3
    printed = json.loads(result.stdout)
    assert [bad["key"] for bad in printed["faults"]] == [kind.name for kind in bad_kinds()]
    content = tar.read_bytes()
    for bad, kind in zip(printed["faults"], bad_kinds(), strict=True):
        assert content[bad["offset"] :].startswith(kind.data)
        assert bad["cause"]
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == len(bad_kinds())


def test_a_loaders_file_names_the_fields_to_check(tmp_path: Path) -> None:
    boxes = {"far": [0, 0, 99, 5], "bad": [1, 2], "good": [0, 0, 5, 5]}
    rows = [
        {"__key__": key, "jpg": jpeg(32, 40), "json": json.dumps({"annotations": [{"bbox": box}]}).encode()}
        for key, box in boxes.items()
    ]
    shard, loader = write_shard(tmp_path / "a.tar", rows), tmp_path / "train.yaml"
    loader.write_text(f"{{tar: {shard}, fields: {{boxes: {{Boxes: {{source: 'json:annotations', format: xywh}}}}}}}}")
    result, as_json = run("check", loader, "--cpu"), json.loads(run("check", loader, "--cpu", "--json").stdout)
    assert result.returncode == 3
    assert [each["kind"] for each in as_json["faults"]] == ["bad", "boxes outside"]
    assert result.stdout.splitlines()[-1] == "3 samples in 1 shard: bad 1, boxes outside 1"


def test_it_says_what_is_wrong_and_where(tmp_path: Path) -> None:
    write_samples(tmp_path, 6, shards=2)
    shard = write_shard(
        tmp_path / "train-0002.tar",
        [{"__key__": "bad", "jpg": b"no image", "cls": b"1"}, {"__key__": "README", "txt": b"no image"}],
    )
    (tmp_path / "train-0003.tar").write_bytes(b"no tar" * 200)
    result = run("check", tmp_path, "--cpu")
    assert result.returncode == 3
    assert "Traceback" not in result.stderr
    expected = [
        f"{shard}: bad: 'bad' at byte 1536: no image format",
        f"{tmp_path}/train-0003.tar: broken: not a tar file",
        f"{shard}: left out: 'README.txt' at byte 2560: its key has no image",
        f"{shard}: lacks .json: 'bad': 1 of 7 samples lack it",
        "7 samples in 4 shards: bad 1, broken 1, left out 1, lacks .json 1",
    ]
    assert all(line.startswith(begin) for line, begin in zip(result.stdout.splitlines(), expected, strict=True))
