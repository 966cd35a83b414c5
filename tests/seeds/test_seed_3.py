"""Best practices for loaders: the code of the page, with our trainer."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from seeds import Names, Page
from torch import nn
from torch.utils.data import TensorDataset

from gpuloader import World
from gpuloader.compat import (
    DataLoaderConfig,
    DataLoaderFactory,
    GenericTrainer,
    GenericTrainerConfig,
    MultiDataLoaderConfig,
    SamplingStrategy,
)

# More workers than there are cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

IMPORTS = {
    "model_training_framework.trainer": "gpuloader.compat",
    "model_training_framework.trainer.hooks": "gpuloader.compat",
}
DATA = TensorDataset(torch.rand(64, 4), torch.arange(64) % 3)


def training(names: Names) -> None:
    names["train_loader"] = names["create_optimized_dataloader"](DATA, 8, num_workers=0, world_size=2)
    names["num_epochs"] = 2


def dataset(names: Names) -> None:
    names["dataset"] = DATA


def trained(names: Names) -> None:
    names["train_dataset"] = names["val_dataset"] = DATA
    names["model"] = nn.Linear(4, 3)
    names["optimizer"] = torch.optim.SGD(names["model"].parameters(), lr=0.1)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    deterministic = torch.are_deterministic_algorithms_enabled()
    cudnn = torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark
    method = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)  # no other finds the page's functions, which are in no file
    with closing(Page(3, IMPORTS, {3: training, 7: dataset, 12: trained})) as page:
        yield page
    multiprocessing.set_start_method(method, force=True)
    cudnn.deterministic, cudnn.benchmark = flags
    torch.use_deterministic_algorithms(deterministic)


@pytest.mark.parametrize("number", range(1, 14))
def test_a_block_runs(page: Page, number: int) -> None:
    page.run(number)


def epoch(loader: object) -> list[list[int]]:
    return [labels.tolist() for _, labels in loader]


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_get_from_our_factory_what_the_pages_loader_gives_them(page: Page, is_training: bool, rank: int) -> None:
    create, config = page.run(1)["create_optimized_dataloader"], {"shuffle": is_training, "drop_last": is_training}
    theirs = create(DATA, 5, is_training, num_workers=0, world_size=2, rank=rank)
    ours = DataLoaderFactory().create_dataloader(DATA, DataLoaderConfig(5, seed=42, world=World(rank, 2), **config))
    for number in range(2):
        theirs.sampler.set_epoch(number)
        ours.sampler.set_epoch(number)
        assert epoch(ours) == epoch(theirs)


def test_several_loaders_train_with_their_config(page: Page) -> None:
    loaders, config = page.run(8)["create_multi_dataloaders"]({"a": (DATA, 8), "b": (DATA, 16)}, None, num_workers=2)
    assert config == MultiDataLoaderConfig(SamplingStrategy.WEIGHTED, [1.0, 1.0], ["a", "b"], True)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = GenericTrainer(GenericTrainerConfig(train_loader_config=config), model, [optimizer])
    first, second = trainer.fit(loaders, max_epochs=2)
    assert second["train_loss"] < first["train_loss"]


@pytest.mark.parametrize("step", ["training_step", "training_step_with_amp"])
def test_the_pages_steps_train(page: Page, step: str) -> None:
    names = page.run(12)
    trainer = GenericTrainer(names["config"], names["model"], [names["optimizer"]], training_step=names[step])
    losses = trainer.fit([names["train_loader"]], [names["val_loader"]], max_epochs=2)
    assert losses[1]["val_loss"] < losses[0]["val_loss"]


def test_the_pages_hook_is_called(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    names = page.run(13)
    trainer = names["trainer"]
    assert trainer.epoch == 100  # those of the page's example
    trainer.fit([names["train_loader"]], max_epochs=trainer.epoch + 1)
    assert "Avg batch time" in capsys.readouterr().out
