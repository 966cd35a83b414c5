"""Packing with packages that are not always there: Ray, and Hugging Face's datasets.

The packages come with scripts/test_integrations; elsewhere these tests skip.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from making import jpeg, picture
from packing import CLASSES, content, samples_of, write_class_folders

from gpuloader.errors import ConfigError, LabelError
from gpuloader.pack import pack

# --- Ray: a cluster of two nodes on this machine


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two nodes of one core each."""
    pytest.importorskip("ray", reason="ray is not installed; scripts/test_integrations installs it")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 * 2**20})
        nodes.add_node(num_cpus=1, object_store_memory=100 * 2**20)
        nodes.wait_for_nodes()
        yield nodes.address
        nodes.shutdown()


def test_a_ray_cluster_writes_what_one_process_writes(cluster: str, tmp_path: Path) -> None:
    source = write_class_folders(tmp_path / "photos")
    (source / "cat" / "bad.jpg").write_bytes(b"no picture")
    alone = pack(source, tmp_path / "alone", samples_per_shard=4, workers=1)
    by_ray = pack(source, tmp_path / "by-ray", samples_per_shard=4, ray=cluster)
    assert content(tmp_path / "by-ray") == content(tmp_path / "alone")
    assert (by_ray.written, by_ray.shards, by_ray.left_out) == (8, alone.shards, alone.left_out)


def test_an_error_on_a_node_is_the_error_itself(cluster: str, tmp_path: Path) -> None:
    dataset = [(picture(8, 8), "cat")]
    with pytest.raises(LabelError, match=r"^item 0 of the dataset has the label 'cat': it must be an integer$"):
        pack(dataset, tmp_path / "packed", ray=cluster)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:1", "Connection refused; allowed are auto, local and host:port"),
        ("nonsense", "allowed are auto, local and host:port"),
    ],
)
def test_a_cluster_that_is_not_there(tmp_path: Path, address: str, told: str) -> None:
    pytest.importorskip("ray", reason="ray is not installed; scripts/test_integrations installs it")
    with pytest.raises(ConfigError, match=told):
        pack(write_class_folders(tmp_path / "photos", 3), tmp_path / "packed", ray=address)


# --- Hugging Face's datasets


def features(**columns: object) -> object:
    datasets = pytest.importorskip(
        "datasets", reason="datasets is not installed; scripts/test_integrations installs it"
    )
    kinds = {
        "image": datasets.Image(),
        "class": datasets.ClassLabel(names=list(CLASSES)),
        "int": datasets.Value("int64"),
        "text": datasets.Value("string"),
    }
    return datasets.Features({name: kinds[kind] for name, kind in columns.items()})


def save(folder: Path, rows: list[dict[str, object]], **columns: object) -> Path:
    described = features(**columns)
    from datasets import Dataset

    Dataset.from_list(rows, features=described).save_to_disk(str(folder), num_shards=min(2, len(rows)))
    return folder


def encoded(data: bytes, path: str | None = None) -> dict[str, object]:
    return {"bytes": data, "path": path}


def test_a_saved_dataset_is_packed_with_its_bytes_labels_and_further_columns(tmp_path: Path) -> None:
    images = [jpeg(24, 32, seed=i) for i in range(6)]
    rows = [
        {"image": encoded(data), "label": i % 3, "caption": f"a {CLASSES[i % 3]} é"} for i, data in enumerate(images)
    ]
    saved = save(tmp_path / "saved", rows, image="image", label="class", caption="text")
    result = pack(saved, tmp_path / "packed", samples_per_shard=2, shuffle=False, workers=2)
    assert result.classes == CLASSES
    assert samples_of(tmp_path / "packed") == [
        {
            "__key__": f"{i:08d}",
            "jpg": data,
            "cls": b"%d" % (i % 3),
            "json": json.dumps({"caption": f"a {CLASSES[i % 3]} é"}, ensure_ascii=False).encode(),
        }
        for i, data in enumerate(images)
    ]


def test_images_that_are_no_pictures_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"image": encoded(jpeg(24, 32)), "label": 0},
        {"image": encoded(b"?"), "label": 0},
        {"image": None, "label": 1},
    ]
    saved = save(tmp_path / "saved", rows, image="image", label="class")
    result = pack(saved, tmp_path / "packed", shuffle=False, workers=1)
    assert [picture.name for picture in result.left_out] == [f"row {i} of {saved}" for i in (1, 2)]
    assert result.left_out[1].why == "the row has no image"
    assert result.samples == 1


@pytest.mark.parametrize(
    ("columns", "rows", "error", "message"),
    [
        ({"label": "class"}, [{"label": 0}], ConfigError, "has the Image columns []: there must be exactly one"),
        ({"image": "image", "label": "text"}, [{"image": None, "label": "x"}], ConfigError, "one must be called label"),
        ({"image": "image", "label": "class"}, [{"image": None, "label": -1}], LabelError, "has no label (-1)"),
    ],
)
def test_columns_that_cannot_be_meant_are_an_error(
    tmp_path: Path, columns: dict[str, str], rows: list[dict[str, object]], error: type[Exception], message: str
) -> None:
    saved = save(tmp_path / "saved", rows, **columns)
    with pytest.raises(error) as raised:
        pack(saved, tmp_path / "packed", workers=1)
    assert message in str(raised.value)


def test_a_dataset_of_several_splits_names_them(tmp_path: Path) -> None:
    rows = [{"image": encoded(jpeg(24, 32)), "label": 0}]
    described = features(image="image", label="class")
    from datasets import Dataset, DatasetDict

    one = Dataset.from_list(rows, features=described)
    DatasetDict({"train": one, "test": one}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(ConfigError, match=r"pack one at a time: .*/SPLIT of test, train"):
        pack(tmp_path / "saved", tmp_path / "packed")
    assert pack(tmp_path / "saved" / "test", tmp_path / "packed", workers=1).samples == 1
