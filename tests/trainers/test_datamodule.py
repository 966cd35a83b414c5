"""What Lightning's data module does without Lightning; tests/integrations has it in real runs of a Trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
import torch

from gpuloader import BadImages, ConfigError, GPULoader, StateError
from gpuloader.trainers.datamodule import TrainerLoaders
from gpuloader.trainers.wait_callback import WaitLogging


@pytest.mark.parametrize("stage", ["train", "val", "test", "predict"])
@pytest.mark.parametrize("sources", [{}, {"train": "a.tar", "val": "a.tar", "test": "a.tar", "predict": "a.tar"}])
def test_without_a_trainer_there_are_no_loaders(stage: str, sources: dict[str, Any]) -> None:
    data = TrainerLoaders(**sources, batch_size=8)
    with pytest.raises(ConfigError, match=rf"^{stage}_dataloader\(\) of a data module without a Trainer") as error:
        getattr(data, f"{stage}_dataloader")()
    assert "trainer.fit(model, datamodule=...)" in str(error.value)
    assert "GPULoader" in str(error.value)


def test_without_a_trainer_the_state_is_that_of_a_checkpoint() -> None:
    data = TrainerLoaders("a.tar", batch_size=8)
    data.load_state_dict({"epoch": 3})
    data.teardown("fit")
    assert data.state_dict() == {"epoch": 3}


@pytest.mark.parametrize("state", [None, [], 3])
def test_a_checkpoint_of_something_else_is_refused(state: Any) -> None:  # noqa: ANN401
    with pytest.raises(StateError, match=r"the checkpoint's state of the data module is .*, not a mapping"):
        TrainerLoaders("a.tar", batch_size=8).load_state_dict(state)


class OnOneDevice:
    """A Trainer as far as the data module looks at it to make loaders."""

    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    distributed_sampler_kwargs = None


def test_evaluation_shares_the_values_less_the_images_that_are_known_to_be_bad(
    shards: list[Path], tmp_path: Path
) -> None:
    known = tmp_path / "bad.jsonl"
    known.touch()
    values = {"on_error": {"replace": True, "known": known}, "decoder": {"num_threads": 2}}
    data = TrainerLoaders(shards, shards, batch_size=8, **values, sampling={"steps_per_epoch": 2})
    data.trainer = OnOneDevice()
    train, val = data.train_dataloader().loader.run, data.val_dataloader().loader.run
    assert (train.bad_images, train.num_threads, train.plan.steps()) == (BadImages(replace=True, known=known), 2, 2)
    assert (val.bad_images, val.num_threads, val.plan.steps()) == (BadImages(replace=True), 2, 5)
    data.teardown("fit")


class Reading:
    """A Trainer as far as the callback looks at it."""

    def __init__(self, train_dataloader: object) -> None:
        self.train_dataloader = train_dataloader


@pytest.mark.parametrize(("loader", "kind"), [([], "list"), (None, "NoneType")])
def test_the_wait_monitor_says_what_it_can_look_at(loader: object, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"training reads from a {kind}; allowed is a GPULoader: train with"):
        WaitLogging().on_train_epoch_start(Reading(loader), None)


@pytest.mark.parametrize("function", [GPULoader.__init__, TrainerLoaders.__init__])
def test_annotations_can_be_read_at_runtime(function: Callable[..., None]) -> None:
    """As LightningCLI reads them; a forward reference would be an error here, and be shown as Unvalidated there."""
    assert get_type_hints(function)["batch_size"] is int
