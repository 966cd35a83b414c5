"""A folder of any names, the tar that GNU tar makes of it, and the shards that `pack` makes of it are one data set."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders import loader
from making import SIZES, encoded, jpeg, picture, tar_of, write_tree

from gpuloader import GPULoader, LabelFrom
from gpuloader.errors import DataError, GPULoaderError, LabelError, NoSamplesError, ShardNotFoundError
from gpuloader.loading.loader import run_of
from gpuloader.pack import pack
from gpuloader.shards import ClassOrder
from gpuloader.tools.check import check_shards
from gpuloader.tools.index import index_shards
from gpuloader.tools.info import describe_shards

CONTENTS = [*(jpeg(6 + side, 9, seed=side) for side in range(5)), encoded(picture(5, 7), "PNG")]
ENDS = {"jpg", "jpeg", "png"}
RAW = os.fsdecode(b"\xff")  # as text it comes before "\ue000", as bytes after it
FOLDERS = st.sampled_from(["a", "a-b", "a.b", "A", "e\u0301", RAW, "\ue000", "x\ny"])
STEMS = st.sampled_from(["a", "a-b", "A", RAW, "\U0001f431", "1", "10"])
IMAGES = st.sampled_from([".jpg", ".JPG", ".jpeg"])
OTHERS = st.sampled_from([".cls", ".json", ".txt", ".CLS", ".mask.png", ".1.jpg", ".png", "", "."])
FILES = st.tuples(
    st.lists(st.one_of(FOLDERS, FOLDERS, st.sampled_from([".hidden", "__MACOSX", "@eaDir"])), max_size=3),
    st.one_of(STEMS, STEMS, st.just(".a")),
    st.one_of(IMAGES, IMAGES, IMAGES, OTHERS),
)
CLASS_FILES = st.tuples(st.lists(FOLDERS, min_size=1, max_size=3), STEMS, IMAGES)


def key_of(file: tuple[list[str], str, str]) -> str:
    return "/".join([*file[0], file[1]])


def write_files(root: Path, files: list[tuple[list[str], str, str]]) -> Path:
    """Files with contents of their own; one below a file, or in the place of a folder, is passed over."""
    root.mkdir()
    for number, (folders, stem, end) in enumerate(files):
        path = root.joinpath(*folders, stem + end)
        if not path.exists() and not any(each.is_file() for each in path.parents):
            label, image = b"%d" % (number % 4), CONTENTS[number % len(CONTENTS)]
            write_tree(root, {str(path.relative_to(root)): label if end.lower() == ".cls" else image})
    return root


def opened(source: Any, label_from: LabelFrom | str | None = "auto", **kwargs: Any) -> GPULoader:  # noqa: ANN401
    return loader(source, 3, output="dict", last_batch="pad", label_from=label_from, **kwargs)


def described(loader: GPULoader) -> dict[str, Any]:
    """The samples with their labels, and what is planned for two epochs."""
    with loader:
        run = run_of(loader)
        batches = [run.plan.batch(run.plan.at(epoch, step)) for epoch in range(2) for step in range(run.plan.steps)]
        samples = range(len(run.shards))
        return {
            "keys": [run.shards.index.key(sample).removeprefix("./") for sample in samples],
            "digest": run.shards.fingerprint,
            "labels": run.labels and run.labels.of(np.array(samples)).tolist(),
            "planned": [
                (batch.ids.tolist(), batch.valid.tolist(), batch.draws.uniform(0, 4).tolist()) for batch in batches
            ],
            "components": [
                {name: run.shards.read_component(sample, name) for name, *_ in run.shards.index.components(sample)}
                for sample in samples
            ],
        }


def assert_equal_batches(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert [key.removeprefix("./") for key in one["key"]] == [key.removeprefix("./") for key in other["key"]]
        assert all(torch.equal(one[name], other[name]) for name in ("image", "label", "index", "valid"))


def shown_by_stems(root: Path) -> tuple[set[str], int]:
    """The keys that have an image, and how many pictures there are, of the files that `find` finds."""
    hidden = ["-type", "d", "(", "-name", ".*", "-o", "-name", "__MACOSX", "-o", "-name", "@eaDir", ")", "-prune"]
    files = ["-o", "-type", "f", "-printf", "%P\\0"]
    found = subprocess.run(["find", "-L", root, *hidden, *files], stdout=subprocess.PIPE, check=True)
    names = [os.path.split(name) for name in os.fsdecode(found.stdout).split("\0")[:-1]]
    parts = [(os.path.join(folder, name.partition(".")[0]), name.partition(".")[2].lower()) for folder, name in names]  # noqa: PTH118
    visible = [(key, end) for key, end in parts if Path(key).name and not key.endswith("/")]
    keys = {key for key, end in visible if end in ENDS}
    return keys, sum(end.rpartition(".")[2] in ENDS for _, end in visible)


# --- the tar


@settings(max_examples=25, deadline=None)
@given(files=st.lists(FILES, max_size=12))
def test_any_tree_is_the_data_set_of_its_tar(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[list[str], str, str]]
) -> None:
    root = write_files(tmp_path_factory.mktemp("trees") / "tree", files)
    tar = tar_of(root, root.with_name("tree.tar"))
    stems, pictures = shown_by_stems(root)
    if pictures > len(stems):
        with pytest.raises(DataError, match=f"{pictures - len(stems)} pictures? that belong to no sample"):
            opened(root, None)
        return
    try:
        expected = described(opened(tar))
    except GPULoaderError as error:
        with pytest.raises((type(error), ShardNotFoundError) if isinstance(error, NoSamplesError) else type(error)):
            opened(root)
        return
    assert set(expected["keys"]) == stems
    try:
        ours = described(opened(root))
    except LabelError:  # of folders below class folders, or class folders without pictures
        ours, expected = described(opened(root, None)), described(opened(tar, None))
    assert ours == expected


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_all_tools_leave_out_hidden_folders_with_one_line(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    shown, hidden = ("a/1.jpg", "a/2.jpg", "b/1.jpg"), (".x/1.jpg", "@eaDir/1.jpg", "a/.y/2.jpg", "__MACOSX/b/1.jpg")
    source = write_tree(tmp_path / "photos", dict.fromkeys([*shown, *hidden], CONTENTS[0]))
    source = source if form == "folder" else tar_of(source, tmp_path / "photos.tar")
    packed = tmp_path / "packed"
    tools: dict[str, Callable[[], object]] = {
        "loader": lambda: described(opened(source, "folder"))["labels"] == [0, 0, 1],
        "info": lambda: [each.samples for each in describe_shards(source, label_from="folder").classes] == [2, 1],
        "check": lambda: list(vars(check_shards(source)).values())[1:4] == [3, (), 0],  # samples, faults, left out
        "index": lambda: index_shards([str(source)])[0][0]["samples"] == 3,
        "pack": lambda: pack(source, packed, workers=1, shuffle=False).samples == 3,
    }
    for name, tool in tools.items():
        caplog.clear()
        assert tool() in (True, None), name
        [line] = caplog.messages
        assert "4 pictures" in line, name
        assert ".x/1.jpg" in line, name
    assert opened(packed, "folder").classes == ("a", "b")


@pytest.mark.parametrize("merged", [False, True])
def test_all_tools_name_archives_beside_the_tars_of_a_folder_with_one_line(
    tmp_path: Path, merged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    photos = write_tree(tmp_path / "photos", {"a/1.jpg": CONTENTS[0]})
    others = ("b.TAR", "c.tar.gz", "d.tgz", "e.Zip", "f.tar.zst", "g.tar.XZ", "h.tbz2", "i.tar.bz2")
    folder = write_tree(tmp_path / "shards", dict.fromkeys([*others, "README.txt", "._j.zip", "k.zip/1.txt"], b""))
    tar_of(photos, folder / "a.tar")
    if merged:
        index_shards([str(folder)], merge=True)
    tools: dict[str, Callable[[], object]] = {
        "loader": lambda: opened(folder, None).num_samples == 1,
        "info": lambda: describe_shards(folder, label_from=None).samples == 1,
        "check": lambda: check_shards(folder).samples == 1,
        "index": lambda: index_shards([str(folder)])[0][0]["samples"] == 1,
        "pack": lambda: pack(folder, tmp_path / "packed", workers=1).samples == 1,
    }
    for name, tool in tools.items():
        caplog.clear()
        assert tool() in (True, None), name
        [line] = caplog.messages
        assert "8 archives" in line, name
        assert "b.TAR" in line, name


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_loaders_leave_out_gif_and_avif_and_pack_converts_them(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = {"1.jfif": "JPEG", "2.JPE": "JPEG", "3.gif": "GIF", "4.AVIF": "AVIF"}
    files = {f"{label}/{name}": encoded(picture(6, 9), kind) for label in "ab" for name, kind in kinds.items()}
    source = write_tree(tmp_path / "photos", files)
    source = source if form == "folder" else tar_of(source, tmp_path / "photos.tar")
    assert described(opened(source, "folder"))["labels"] == [0, 0, 1, 1]
    assert [message for message in caplog.messages if "GIF" in message and "`gpuloader pack`" in message]
    result = pack(source, tmp_path / "packed", workers=1, shuffle=False)
    assert (result.samples, result.left_out, result.passed_over) == (8, (), 0)
    packed = opened(tmp_path / "packed", "folder")
    assert described(packed)["labels"] == [0] * 4 + [1] * 4


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_a_source_of_gifs_alone_is_packed_and_a_loader_says_so(tmp_path: Path, form: str) -> None:
    source = write_tree(tmp_path / "photos", {"a/1.gif": encoded(picture(6, 9), "GIF")})
    source = source if form == "folder" else tar_of(source, tmp_path / "photos.tar")
    with pytest.raises(DataError, match=r"GIF.*`gpuloader pack`"):
        opened(source, None)
    assert pack(source, tmp_path / "packed", workers=1).samples == 1


def test_pictures_of_which_none_is_a_sample_are_named(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "tree", {"photo.2023.1.jpg": CONTENTS[0], "photo.2023.2.jpg": CONTENTS[1]})
    with pytest.raises(DataError, match=r"tree has 2 pictures that belong to no sample, such as photo\.2023\.1\.jpg"):
        opened(root)


# --- packed shards


def write_classes(root: Path, filled: list[str], empty: list[str]) -> Path:
    """Class folders with one picture each, and folders that have none."""
    write_tree(root, {**{f"{name}/1.jpg": CONTENTS[0] for name in filled}, **{f"{name}/1.heic": b"" for name in empty}})
    return root


@pytest.mark.parametrize("label_from", ["folder", "folder:top"])
@pytest.mark.parametrize(
    ("empty", "classes", "labels", "left_out"),
    [
        (["b"], ["a", "b", "c"], [0, 2], []),
        ([], ["a", "b", "c"], [0, 2], []),  # a missing folder
        (["b"], ["c", "x", "b", "a"], [3, 0], []),
        (["b", "d", "e"], ["a", "b", "c"], [0, 2], ["d", "e"]),
    ],
)
def test_classes_that_are_given_keep_the_numbers_of_empty_folders(
    tmp_path: Path,
    label_from: str,
    empty: list[str],
    classes: list[str],
    labels: list[int],
    left_out: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = write_classes(tmp_path / "val", ["a", "c"], empty)
    ours = opened(root, LabelFrom(label_from, classes=classes))
    packed = pack(root, tmp_path / "packed", classes=classes, shuffle=False, workers=1)
    for each in (ours, opened(tmp_path / "packed")):
        assert each.classes == packed.classes == tuple(classes)
        assert described(each)["labels"] == labels
    said = [message for message in caplog.messages if "not in classes" in message]
    assert [str(left_out) in message for message in said] == [True] * 2 * bool(left_out)  # the loader and `pack`


def test_an_empty_class_folder_is_numbered_as_in_the_shards_that_are_there(tmp_path: Path) -> None:
    pack(write_classes(tmp_path / "train", ["a", "b", "c"], []), tmp_path / "packed", workers=1)
    pack(
        write_classes(tmp_path / "val", ["a", "c"], ["b"]), tmp_path / "packed", prefix="val", shuffle=False, workers=1
    )
    assert described(opened(tmp_path / "packed" / "val-000000.tar"))["labels"] == [0, 2]


@pytest.mark.parametrize(
    ("order", "names"), [("name", ["class1", "class10", "class2"]), ("natural", ["class1", "class2", "class10"])]
)
def test_without_classes_an_empty_class_folder_is_an_error_that_lists_them_first(
    tmp_path: Path, order: ClassOrder, names: list[str]
) -> None:
    root = write_classes(tmp_path / "val", ["class1", "class2"], ["class10"])
    with pytest.raises(LabelError) as caught:
        opened(root, LabelFrom("folder", order=order))
    said = [(str(caught.value), names)]
    with pytest.raises(LabelError) as caught:
        pack(root, tmp_path / "packed", workers=1)
    for text, listed in (*said, (str(caught.value), sorted(names))):
        assert f"{root}/class10 has no pictures" in text
        assert 0 < text.index(f"classes={listed}") < text.index("remove it")
    assert "--classes" in text


@settings(max_examples=12, deadline=None)
@given(files=st.lists(CLASS_FILES, min_size=1, max_size=12, unique_by=key_of))
def test_any_class_folders_are_the_data_set_of_what_pack_makes_of_them(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[list[str], str, str]]
) -> None:
    root = write_files(tmp_path_factory.mktemp("trees") / "tree", files)
    pack(root, root.with_name("packed"), shuffle=False, samples_per_shard=4, workers=1)
    ours = described(opened(root, "folder:top"))
    theirs = described(opened(root.with_name("packed"), "cls"))
    for one, other in zip(ours.pop("components"), theirs.pop("components"), strict=True):
        assert set(one.values()) < set(other.values())
    assert ours == theirs


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """21 pictures of two classes, in nested folders."""
    names = [f"{name}/{i:02d}" for i in range(6) for name in ("cat", "cat/a", "cat/a-b")]
    names += [f"cat-like/{i}" for i in range(3)]
    files = {f"{name}.jpg": jpeg(*SIZES[i % len(SIZES)], seed=i) for i, name in enumerate(names)}
    return write_tree(tmp_path_factory.mktemp("packs") / "photos", files)


@pytest.mark.parametrize("samples_per_shard", [1000, 5])
@pytest.mark.parametrize(
    "seekable",
    [pytest.param(False, id="plain"), pytest.param(True, id="seekable", marks=pytest.mark.needs_program("jpegtran"))],
)
def test_a_run_goes_on_from_the_folder_to_packed_shards_and_back(
    photos: Path, tmp_path: Path, seekable: bool, samples_per_shard: int
) -> None:
    options = {"shuffle": False, "seekable": seekable, "samples_per_shard": samples_per_shard, "workers": 1}
    result = pack(photos, tmp_path / "packed", **options)
    assert len(result.shards) == -(-21 // samples_per_shard)
    sources = [(photos, "folder:top"), (tmp_path / "packed", "cls")]
    with opened(*sources[0], seed=5) as first, opened(*sources[1], seed=5) as second:
        expected = list(first) + list(first)
        assert_equal_batches(list(second) + list(second), expected)
    for source, target in (sources, sources[::-1]):
        with opened(*source, seed=5) as before:
            batches = iter(before)
            for _ in range(2):
                next(batches)
            state = json.loads(json.dumps(before.state_dict()))
        with opened(*target, seed=5) as after:
            after.load_state_dict(state)
            assert_equal_batches(list(after) + list(after), expected[2:])
