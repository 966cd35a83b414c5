"""turboloader's interface: what it gives is what GPULoader gives, and what is wrong is an error of the library's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import damaged_jpeg, jpeg, picture, write_samples, write_shard

from gpuloader import GPULoader
from gpuloader.compat.turboloader import (
    CenterCrop,
    ColorJitter,
    Compose,
    DataLoader,
    ImageNetNormalize,
    Normalize,
    Pipeline,
    RandomCrop,
    RandomHorizontalFlip,
    Resize,
    ResizeMethod,
    Sample,
    TensorFormat,
    ToTensor,
    Transform,
    TransformConfig,
)
from gpuloader.errors import BadImageError, ConfigError, LabelError, LoaderError, PresetError

TRAINING = (Resize(40, 36), RandomCrop(32, 28), RandomHorizontalFlip(0.5), ColorJitter(0.2, 0.2, 0.2, 0.1))


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten samples, i with the label i."""
    [shard] = write_samples(tmp_path_factory.mktemp("tar"), 10, shards=1)
    return shard


def indices(batches: Iterable[list[Sample]]) -> list[list[int]]:
    return [[sample["index"] for sample in batch] for batch in batches]


# Transforms.


@pytest.mark.parametrize(
    "transforms",
    [
        (*TRAINING, ImageNetNormalize(), ToTensor()),
        (*TRAINING, ToTensor()),  # levels
        (Resize(40, 36), CenterCrop(32, 28), Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)), ToTensor()),
        (RandomCrop(90, 90, padding=4), ToTensor()),  # larger than the images
    ],
)
def test_what_is_applied_is_what_gpuloader_does_with_the_preset(tar: Path, transforms: tuple[Transform, ...]) -> None:
    torch.manual_seed(7)
    compose = Compose(transforms)
    images = [compose.apply(sample["image"]) for batch in DataLoader(tar, 4) for sample in batch]
    with GPULoader(tar, 10, None, preset=compose.preset, shuffle=False, last_batch="partial", seed=7) as loader:
        [(batch, _)] = loader
    assert torch.equal(torch.from_numpy(np.stack(images)), batch)


@pytest.mark.parametrize(
    ("transform", "shape", "dtype"),
    [
        (Resize(20, 10), (10, 20, 3), "uint8"),  # the width first, as in turboloader
        (Compose([Resize(20, 10), ImageNetNormalize()]), (10, 20, 3), "float32"),
        (Compose([ToTensor(), Compose([Resize(20, 10)])]), (3, 10, 20), "uint8"),  # wherever it stands
        (Compose([Resize(20, 10), ToTensor(TensorFormat.TENSORFLOW_HWC)]), (10, 20, 3), "uint8"),
        (ImageNetNormalize(), (30, 50, 3), "float32"),  # without a size of its own: the image's
        (ToTensor(), (3, 30, 50), "uint8"),
        (Compose([]), (30, 50, 3), "uint8"),
    ],
)
def test_what_comes_out(transform: Transform, shape: tuple[int, ...], dtype: str) -> None:
    made = transform.apply(np.asarray(picture(30, 50)))
    assert (made.shape, made.dtype.name, made.flags.c_contiguous) == (shape, dtype, True)


def test_images_of_any_size_keep_it_where_nothing_sets_one() -> None:
    flip, images = RandomHorizontalFlip(1.0), [np.asarray(picture(*size)) for size in ((30, 50), (50, 30), (30, 50))]
    for image in images:
        assert np.array_equal(flip(image), image[:, ::-1])


def test_each_time_that_it_is_applied_other_numbers_are_drawn() -> None:
    crop, image = RandomCrop(8, 8), np.asarray(picture(64, 64))
    torch.manual_seed(1)
    made = [crop.apply(image).tobytes() for _ in range(8)]
    assert len(set(made)) == 8
    again = RandomCrop(8, 8)
    assert [again.apply(image).tobytes() for _ in range(8)] == made
    torch.manual_seed(2)
    assert RandomCrop(8, 8).apply(image).tobytes() != made[0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Resize(0, 10), "Resize"),
        (lambda: Compose([torch.nn.Identity()]), "is not a transform of this module"),
        (lambda: Compose([ImageNetNormalize(), Resize(8, 8)]).preset, "Resize is in the wrong place"),
        (lambda: RandomHorizontalFlip().preset, "RandomHorizontalFlip leaves images of different sizes"),
    ],
)
def test_a_wrong_transform_is_an_error_of_recipes(make: Callable[[], object], says: str) -> None:
    with pytest.raises(PresetError, match=says):
        make()


@pytest.mark.parametrize("image", [np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3), np.float32), b"JPEG"])
def test_what_is_no_image_is_an_error(image: object) -> None:
    with pytest.raises(ConfigError, match=r"allowed .*\(height, width, 3\)"):
        Resize(4, 4).apply(image)


# DataLoader.


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [4, 4, 2]), (True, [4, 4])])
def test_an_epoch_has_each_sample_once(tar: Path, drop_last: bool, sizes: list[int]) -> None:
    loader = DataLoader(str(tar), batch_size=4, num_workers=8, shuffle=True, drop_last=drop_last)
    epochs = [list(loader) for _ in range(2)]
    assert [[len(batch) for batch in batches] for batches in epochs] == [sizes] * 2
    assert len(loader) == len(sizes)
    orders = [[*chain(*indices(batches))] for batches in epochs]
    assert [len(set(order)) for order in orders] == [sum(sizes)] * 2
    assert orders[0] != orders[1]
    assert all(sample["label"] == sample["index"] for batches in epochs for batch in batches for sample in batch)
    assert indices(DataLoader(tar, 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("distributed", "rank", "samples"),
    [(False, 0, list(range(10))), (False, 1, list(range(10))), (True, 0, [0, 1, 2, 6, 7]), (True, 1, [3, 4, 5, 8, 9])],
)
def test_ranks_share_the_data_where_they_are_told_to(
    tar: Path, monkeypatch: pytest.MonkeyPatch, distributed: bool, rank: int, samples: list[int]
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert [*chain(*indices(DataLoader(tar, 3, enable_distributed=distributed)))] == samples


def test_a_process_that_shares_the_data_with_none_is_told_so(tar: Path, caplog: pytest.LogCaptureFixture) -> None:
    DataLoader(tar)
    assert caplog.messages == []
    DataLoader(tar, enable_distributed=True)
    assert "this process is rank 0 of 1" in caplog.messages[0]


def test_a_bad_image_is_an_error_that_names_it(tmp_path: Path) -> None:
    samples = [{"__key__": f"{number}", "jpg": damaged_jpeg() if number == 5 else jpeg(20, 30)} for number in range(8)]
    batches = iter(DataLoader(write_shard(tmp_path / "a.tar", samples), 4))
    next(batches)
    with pytest.raises(BadImageError, match="decoder fails") as caught:
        next(batches)
    assert (Path(caught.value.shard).name, caught.value.key) == ("a.tar", "5")


def test_what_a_sample_lacks_is_an_error_that_says_so(tmp_path: Path) -> None:
    [[sample]] = DataLoader(write_shard(tmp_path / "a.tar", [{"__key__": "cat", "jpg": jpeg(8, 8)}]))
    assert sample.get("label", 0) == 0
    with pytest.raises(LabelError, match="'cat' has no label"):
        sample["label"]
    with pytest.raises(ConfigError, match="a sample has no 'filename': it has image, index, key"):
        sample["filename"]


# Pipeline.


def resized(**options: object) -> TransformConfig:
    return TransformConfig(enable_resize=True, resize_width=20, resize_height=10, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "shape", "dtype"),
    [
        (resized(), (10, 20, 3), "uint8"),
        (resized(enable_normalize=True), (10, 20, 3), "float32"),
        (resized(output_float=True, resize_method=ResizeMethod.NEAREST), (10, 20, 3), "float32"),
        (None, (60, 80, 3), "uint8"),
        (TransformConfig(enable_normalize=True), (60, 80, 3), "float32"),
    ],
)
def test_a_pipeline_gives_as_many_samples_as_it_is_asked_for(
    tar: Path, config: TransformConfig | None, shape: tuple[int, ...], dtype: str
) -> None:
    pipeline = Pipeline([str(tar)], num_workers=2, queue_size=3, transform_config=config)
    for _ in range(2):
        pipeline.start()
        batches = [pipeline.next_batch(n) for n in (1, 4, 2, 64, 1)]
        assert indices(batches) == [[0], [1, 2, 3, 4], [5, 6], [7, 8, 9], []]
        pipeline.stop()
    image = batches[0][0].get_image()
    assert (image.shape, image.dtype.name, batches[1][0]["label"], batches[1][0]["key"]) == (shape, dtype, 1, "000001")


def test_values_of_a_pipeline_are_those_of_its_transforms(tar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # a GPU decodes a little differently
    for config in (resized(enable_normalize=True), resized(output_float=True), resized()):
        pipeline = Pipeline([str(tar)], transform_config=config)
        pipeline.start()
        [batch] = DataLoader(tar)
        for sample, whole in zip(pipeline.next_batch(10), batch, strict=True):
            assert np.array_equal(sample.get_image(), config.compose.apply(whole["image"]))
    levels, shares = resized().compose, resized(output_float=True).compose
    assert np.allclose(levels(batch[0]["image"]) / 255, shares(batch[0]["image"]), atol=0.002)  # rounded


def test_each_start_is_an_epoch_whatever_was_left(tar: Path) -> None:
    pipeline = Pipeline([str(tar)], shuffle=True, transform_config=resized())
    orders = []
    for asked in (3, 10, 10):
        pipeline.start()
        orders.append(indices([pipeline.next_batch(asked)])[0])
    assert [len(set(order)) for order in orders] == [3, 10, 10]
    assert orders[1] != orders[2]
    pipeline.stop()
    with pytest.raises(LoaderError, match=r"call start\(\)"):
        pipeline.next_batch(1)
    pipeline.start()
    with pytest.raises(ConfigError, match="batch_size=0"):  # none would look like the end
        pipeline.next_batch(0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"decode_jpeg": False}, "decode_jpeg=False"),
        ({"queue_size": 0}, "queue_size=0"),
        ({"transform_config": TransformConfig(enable_resize=True, resize_method="cubic")}, "'cubic'"),
    ],
)
def test_a_wrong_pipeline_is_an_error(tar: Path, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Pipeline([str(tar)], **arguments)
