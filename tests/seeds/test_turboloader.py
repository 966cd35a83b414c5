"""What turboloader's own pages show runs on `gpuloader.compat.turboloader`, verbatim, and means what they say."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from making import picture, tar_by_command, write_samples
from PIL import Image
from seeds import TURBOLOADER, Names, Page, blocks_of, on_a_small_machine, tiny_net
from warm import Program

import gpuloader.compat.turboloader as turboloader
from gpuloader import GPULoader

# They show the place of code by a comment alone, where Python wants a statement.
NO_PYTHON = {(2, 8), (2, 14)}
SAMPLES = 6
SIZE = (24, 32)


def write_folder(folder: Path, names: list[str]) -> None:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        picture(*SIZE, seed=number).save(folder / name, quality=95)


def flat_tar(path: Path) -> None:
    write_folder(path.parent / "flat", [f"img{number}.jpg" for number in range(SAMPLES)])
    tar_by_command(path.parent / "flat", path)


def class_tar(path: Path) -> None:
    write_folder(path.parent / "classes", [f"class{number % 2}/img{number}.jpg" for number in range(SAMPLES)])
    tar_by_command(path.parent / "classes", path, "--sort=name")


def cls_tar(path: Path, samples: int = SAMPLES) -> None:
    [made] = write_samples(path.parent / "cls", samples, shards=1, sizes=[SIZE])
    made.rename(path)


def images_of(batch: list[dict[str, Any]]) -> torch.Tensor:
    return torch.stack([torch.from_numpy(sample["image"]).permute(2, 0, 1).float() for sample in batch])


def left_open() -> dict[int, dict[int, Names]]:
    """The names that the pages leave open, by page and block."""
    labels, criterion = torch.arange(SAMPLES), torch.nn.CrossEntropyLoss()
    model = tiny_net(10)
    training = {"model": model, "criterion": criterion, "optimizer": torch.optim.SGD(model.parameters(), lr=0.01)}
    dataset = torch.utils.data.TensorDataset(torch.zeros(SAMPLES, 3, *SIZE), labels)
    return {
        1: {
            1: training,
            9: {"images": [torch.zeros(3, *SIZE)] * SAMPLES},
            10: {"process_batch": images_of, "labels": labels},
            11: {"process_batch": lambda batch: (images_of(batch), labels)},
            14: {"process_batch": images_of},
        },
        2: {
            1: {**training, "dataset": dataset, "num_epochs": 1},
            2: {**training, "torch": torch, "labels": labels, "num_epochs": 2},
        },
    }


def _add(more: Names, names: Names) -> None:
    names |= more


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Where the pages' blocks run, with the shards that they name."""
    guide, example = tmp_path_factory.mktemp("guide"), tmp_path_factory.mktemp("example")
    cls_tar(guide / "imagenet_train.tar")
    class_tar(guide / "imagenet_val.tar")
    flat_tar(guide / "data.tar")
    cls_tar(example / "train.tar")
    shutil.copy(example / "train.tar", example / "cls-train.tar")  # a block writes another one in its place
    cls_tar(example / "imagenet_train.tar", samples=2)  # a large net
    write_folder(example / "data/train", [f"class{number % 2}/img{number}.jpg" for number in range(SAMPLES)])
    return {1: guide, 2: example}


@pytest.fixture(scope="module")
def pages(folders: dict[int, Path]) -> dict[int, Page]:
    return {
        page: Page(
            page,
            TURBOLOADER,
            {number: partial(_add, names) for number, names in names_of.items()},
            partial(on_a_small_machine, folders[page]),
        )
        for page, names_of in left_open().items()
    }


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pages import of other packages: it takes no part in what is tested, and need not be installed."""
    named: dict[str, dict[str, Any]] = {
        "pytorch_lightning": {"LightningDataModule": object},
        "torchvision.models": {"resnet50": tiny_net},
        "torchvision.transforms": dict.fromkeys(("Compose", "Resize", "ToTensor", "Normalize"), lambda *_, **__: None),
        "torchvision": {},
    }
    for name, attributes in named.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]  # type: ignore[attr-defined]


Run = Callable[[int, int], tuple[Names, str]]


@pytest.fixture
def run(pages: dict[int, Page], others: None) -> Run:
    """What a block of a page leaves, and what it prints."""
    return lambda page, number: (pages[page].run(number), pages[page].printed(number))


def shape_of(array: np.ndarray | torch.Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(array.shape), str(array.dtype).removeprefix("torch.")


BLOCKS = [(page, number) for page in (1, 2) for number in blocks_of(page)]


@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp:FutureWarning", "ignore:.*CUDA is not available:UserWarning")
@pytest.mark.parametrize(("page", "number"), [block for block in BLOCKS if block not in NO_PYTHON])
def test_a_block_runs(run: Run, page: int, number: int) -> None:
    run(page, number)


# What the blocks mean.


def test_a_loop_over_the_loader_gives_transformed_images_and_labels(run: Run) -> None:
    names, _ = run(1, 1)
    assert shape_of(names["images"]) == ((SAMPLES, 3, 224, 224), "float32")
    assert sorted(names["labels"].tolist()) == list(range(SAMPLES))
    assert names["images"].min() < -1
    assert names["images"].max() > 1  # normalised


def test_images_are_whole_arrays_of_levels(run: Run, folders: dict[int, Path]) -> None:
    names, _ = run(1, 3)
    assert [shape_of(sample["image"]) for sample in names["batch"]] == [((*SIZE, 3), "uint8")] * SAMPLES
    for sample in names["batch"]:
        with Image.open(folders[1] / f"flat/{Path(sample['key']).name}.jpg") as file:
            assert np.abs(sample["image"].astype(int) - np.asarray(file, int)).max() <= 1
    assert np.array_equal(names["image_chw"], names["sample"]["image"].transpose(2, 0, 1))
    before, _ = run(1, 2)  # by hand
    assert torch.equal(names["image_tensor"], before["image_tensor"])


def test_a_training_goes_through_all_samples_in_each_epoch(run: Run) -> None:
    names, said = run(1, 4)
    assert (names["total"], len(names["train_loader"])) == (SAMPLES, 1)
    assert said.count("completed. Acc:") == 90
    assert shape_of(names["images"]) == ((SAMPLES, 3, 224, 224), "float32")


def test_a_validation_draws_nothing(run: Run) -> None:
    names, said = run(1, 5)
    assert said.startswith("Validation Accuracy: ")
    assert names["total"] == SAMPLES
    assert not names["val_transforms"].preset.random
    assert [sample["label"] for sample in next(iter(names["val_loader"]))] == [0, 0, 0, 1, 1, 1]  # the folders


RANK = """
import json, os, sys, torch
from pathlib import Path
from types import SimpleNamespace
import gpuloader.compat.turboloader as turboloader
from seeds import tiny_net, train_as_rank

class Noting(turboloader.DataLoader):
    def __init__(self, path, batch_size, **options):
        super().__init__(path, batch_size // 128, **options)
        self.epochs = epochs
    def __iter__(self):
        self.epochs.append([])
        for batch in super().__iter__():
            self.epochs[-1].append([sample["index"] for sample in batch])
            yield batch

class Nothing:
    def __init__(self, parameters, **options): pass
    def zero_grad(self): pass
    step = zero_grad

epochs, turboloader.DataLoader = [], Noting
folder, rank = Path(sys.argv[1]), int(sys.argv[2])
optim = SimpleNamespace(SGD=Nothing)  # torch's takes seconds to import
names = {"__name__": "page", "resnet50": tiny_net, "nn": torch.nn, "optim": optim, "range": lambda _: range(2)}
train_as_rank(1, 6, rank, 2, folder, names)
(folder / f"rank{rank}.json").write_text(json.dumps(epochs))
os._exit(0)  # without freeing the model, see train_as_rank
"""


@pytest.mark.slow(kept=1, of="whole programs")
def test_two_ranks_share_each_epoch(tmp_path: Path) -> None:
    write_samples(tmp_path, 9, shards=1, sizes=[SIZE])[0].rename(tmp_path / "imagenet_train.tar")
    ranks = [Program(RANK, tmp_path, rank) for rank in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    orders = []
    for of_first, of_second in zip(first, second, strict=True):
        assert (
            [len(batch) for batch in of_first] == [len(batch) for batch in of_second] == [2, 2]
        )  # the ninth is dropped
        orders.append([*chain(*of_first), *chain(*of_second)])
        assert len(set(orders[-1])) == 8
    assert len(orders) == 2
    assert orders[0] != orders[1]


def test_a_data_module_gives_images_and_labels(run: Run, folders: dict[int, Path]) -> None:
    names, _ = run(1, 7)
    paths = [str(folders[1] / f"imagenet_{part}.tar") for part in ("train", "val")]
    data = names["ImageNetDataModule"](*paths, batch_size=4, num_workers=2)
    data.setup()
    for batches, labels in (
        (data.train_dataloader(), list(range(SAMPLES))),
        (data.val_dataloader(), [0] * 3 + [1] * 3),
    ):
        items = list(batches)
        assert [shape_of(image) for image, _ in items] == [((3, 224, 224), "float32")] * SAMPLES
        assert [label for _, label in items] == labels
    flat = names["TurboLoaderWrapper"](str(folders[1] / "data.tar"), 4, 2)
    assert [label for _, label in flat] == [0] * SAMPLES  # of sample.get("label", 0)


def test_a_pipeline_gives_what_gpuloader_gives_with_its_recipe(run: Run, folders: dict[int, Path]) -> None:
    names, _ = run(2, 2)
    assert names["batch"] == []
    assert shape_of(names["images"]) == ((SAMPLES, 3, 224, 224), "float32")
    tar = folders[2] / "cls-train.tar"
    [(images, _)] = GPULoader(tar, SAMPLES, None, preset=names["transform_config"].compose.preset)
    assert torch.equal(names["images"], images)


def test_a_pipeline_begins_again(run: Run) -> None:
    names, said = run(2, 3)
    assert said.count("Average Loss: ") == 10
    assert "nan" not in said
    assert said.endswith("Training complete!\n")
    names, _ = run(2, 9)
    assert names["batch"] == []


def test_a_tar_of_flat_names_has_whole_images_without_labels(
    run: Run, folders: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(2, 10)
    monkeypatch.chdir(folders[2])
    [batch] = turboloader.DataLoader("train.tar")
    assert sorted(sample["key"] for sample in batch) == [f"img{number}" for number in range(SAMPLES)]
    assert not any("label" in sample for sample in batch)
    names, _ = run(2, 13)
    pipeline = names["pipeline"]
    pipeline.start()
    assert [shape_of(sample.get_image()) for sample in pipeline.next_batch(64)] == [((*SIZE, 3), "uint8")] * SAMPLES
