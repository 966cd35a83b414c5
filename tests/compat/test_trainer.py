"""The trainer: the steps that it takes, of which loaders, and what it calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpuloader.compat import GenericTrainer, GenericTrainerConfig, MultiDataLoaderConfig, SamplingStrategy, TrainerHooks
from gpuloader.errors import ConfigError

INPUTS = torch.rand(12, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3
DATA = TensorDataset(INPUTS, LABELS)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def make_trainer(model: nn.Module | None = None, **settings: Any) -> GenericTrainer:  # noqa: ANN401
    model = model or make_model()
    step = settings.pop("training_step", None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return GenericTrainer(GenericTrainerConfig(**settings), model, [optimizer], step)


def test_steps_are_torchs() -> None:
    trainer = make_trainer()
    trainer.fit([DataLoader(DATA, 5)])
    expected = make_model()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for inputs, labels in zip(INPUTS.split(5), LABELS.split(5)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(expected(inputs), labels).backward()
        optimizer.step()
    for found, wanted in zip(trainer.model.parameters(), expected.parameters()):
        torch.testing.assert_close(found, wanted)


def test_fit_says_what_was_lost_and_goes_on_where_it_was() -> None:
    trainer = make_trainer()
    loader = DataLoader(DATA, 4)
    first = trainer.fit([loader], [loader], max_epochs=2)
    rest = trainer.fit([loader], [loader], max_epochs=3)
    assert (len(first), len(rest), trainer.epoch) == (2, 1, 3)
    losses = [epoch["val_loss"] for epoch in first + rest]
    assert losses == sorted(losses, reverse=True)
    with torch.no_grad():
        loss = torch.stack([nn.functional.cross_entropy(trainer.model(x), y) for x, y in loader]).mean()
    assert losses[-1] == pytest.approx(loss.item())


def test_validation_changes_nothing() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3))
    seen = []

    def validate(trainer: GenericTrainer, batch: Any, *_: object) -> dict[str, Any]:  # noqa: ANN401
        seen.append((trainer.model.training, torch.is_grad_enabled()))
        return {"loss": trainer.model(batch[0]).sum()}

    trainer = make_trainer(model, training_step=validate)
    trainer.fit([[]], [DataLoader(DATA, 6)])  # there is nothing to train on
    assert set(seen) == {(False, False)}
    assert model[0].running_mean.eq(0).all()


class Calls(TrainerHooks):
    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []

    def on_train_batch_start(self, trainer: Any, batch: Any, *place: Any) -> None:  # noqa: ANN401
        self.made.append(("batch", len(batch[0]), *place))

    def on_train_batch_end(self, trainer: Any, batch: Any, *place: Any) -> None:  # noqa: ANN401
        *place, metrics = place
        self.made.append(("done", *place, sorted(metrics)))

    def on_epoch_end(self, trainer: GenericTrainer, epoch: int) -> None:
        self.made.append(("end of epoch", epoch))


def test_hooks_are_called_in_order() -> None:
    trainer, calls = make_trainer(train_loader_config=MultiDataLoaderConfig(SamplingStrategy.SEQUENTIAL)), Calls()
    trainer.hook_manager.register_hook(calls)
    trainer.fit([DataLoader(DATA, 12), DataLoader(DATA, 8)])
    assert calls.made == [
        ("batch", 12, 0, 0, "loader_0"),
        ("done", 0, 0, "loader_0", ["loss"]),
        ("batch", 8, 1, 1, "loader_1"),
        ("done", 1, 1, "loader_1", ["loss"]),
        ("batch", 4, 2, 1, "loader_1"),
        ("done", 2, 1, "loader_1", ["loss"]),
        ("end of epoch", 0),
    ]


S = SamplingStrategy


@pytest.mark.parametrize(
    ("strategy", "cycles", "expected"),
    [
        (S.SEQUENTIAL, True, ["aaab", "aaab"]),
        (S.ALTERNATING, True, ["aaa", "b"]),
        (S.ROUND_ROBIN, True, ["ababa", "ababa"]),  # until each was gone through
        (S.ROUND_ROBIN, False, ["aba", "aba"]),  # until it is the turn of one that has ended
        (S.WEIGHTED, False, ["aaa", "aaa"]),  # drawn: b all but never
    ],
)
def test_strategies(strategy: S, cycles: bool, expected: list[str]) -> None:
    turns: list[str] = []
    trainer = make_trainer(
        train_loader_config=MultiDataLoaderConfig(strategy, [1e9, 1.0], ["a", "b"], cycles),
        training_step=lambda trainer, batch, index, number, name: (
            turns.append(name) or {"loss": trainer.model(batch[0]).sum() * 0}
        ),
    )
    found = []
    for epoch in (1, 2):
        trainer.fit([DataLoader(DATA, 4), DataLoader(DATA, 12)], max_epochs=epoch)
        found.append("".join(turns))
        turns.clear()
    assert found == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataloader_names": ["a", "b"]}, "dataloader_names=.* allowed is one value for each of 1 loader"),
        ({"dataloader_weights": [1, 2], "sampling_strategy": S.WEIGHTED}, "dataloader_weights="),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(train_loader_config=MultiDataLoaderConfig(**settings)).fit([DataLoader(DATA, 4)])
