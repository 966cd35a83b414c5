"""What comes with shards, recipes and files is data: nothing in it is run, and no name in it becomes a path."""

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import jpeg

from gpuloader import GPULoader
from gpuloader.errors import BadImageError, ConfigError, PresetError, ShardNotFoundError
from gpuloader.recipe import load_preset


class Opens:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


def shard(folder: Path, **components: bytes) -> Path:
    """A shard of one sample."""
    path = folder / "train.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in {"a.jpg": jpeg(32, 32), "a.cls": b"1", **components}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def load(tar: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
    with GPULoader(tar, 1, None, preset="imagenet_eval", output="dict", **kwargs) as loader:
        return next(iter(loader))


@pytest.mark.parametrize("extension", ["pyd", "pickle", "pkl", "pth", "pt", "dill"])
def test_pickles_stay_bytes(tmp_path: Path, extension: str) -> None:
    data = pickle.dumps(Opens(tmp_path / "opened"))
    batch = load(shard(tmp_path, **{f"a.{extension}": data}), fields=[extension])
    assert batch[extension] == [data]
    assert not (tmp_path / "opened").exists()


def test_an_array_of_pickled_objects_is_an_error(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.array([Opens(tmp_path / "opened")], object), allow_pickle=True)
    message = r"the \.npy component beside it: an array of Python objects, which are never unpickled"
    with pytest.raises(BadImageError, match=message) as caught:
        load(shard(tmp_path, **{"a.npy": file.getvalue()}), fields=["npy"])
    assert caught.value.key == "a"
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("name", ["../../outside", "/outside", "a/../../outside", "..", "x\nPATH=y"])
def test_a_members_name_is_a_key_and_never_a_path(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "deep/er"
    folder.mkdir(parents=True)
    path = folder / "train.tar"
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(f"{name}/b.jpg")
        member.size = len(jpeg(32, 32))
        tar.addfile(member, io.BytesIO(jpeg(32, 32)))
    assert load(path, label_from=None)["key"] == [f"{name}/b"]
    assert {str(found.relative_to(tmp_path)) for found in tmp_path.rglob("*")} == {
        "deep",
        "deep/er",
        "deep/er/train.tar",
        "deep/er/train.tar.gpuidx",
    }


@pytest.mark.parametrize(
    "tar",
    [
        "pipe:touch {}/opened",
        "pipe:touch {}/opened; cat train.tar",
        "gopher://host/train.tar",
        "ftp://127.0.0.1:1/train.tar",
        "zip://train.tar::file://{}/opened.zip",
        "simplecache::http://127.0.0.1:1/train.tar",
        "s3://bucket/train.tar::file://{}/train.tar",
        "$(touch {}/opened)",
        "`touch {}/opened`.tar",
    ],
)
def test_no_shell_and_no_url_but_those_of_stores(tmp_path: Path, tar: str) -> None:
    shard(tmp_path)
    with pytest.raises((ConfigError, ShardNotFoundError)):
        load(tar.format(tmp_path))
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize(
    "text",
    [
        "transforms: !!python/object/apply:builtins.open [{}/opened, w]",
        "a: &a [x, x]\nb: &b [*a, *a]\ntransforms: *b",
        "transforms: [Grayscale]\n" + "# " + "x" * 2_000_000,
    ],
    ids=["tag", "aliases", "size"],
)
def test_a_recipe_is_plain_data_of_bounded_size(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text.format(tmp_path) if "{}" in text else text)
    with pytest.raises(PresetError):
        load_preset(path)
    assert not (tmp_path / "opened").exists()
