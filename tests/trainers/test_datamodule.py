"""What Lightning's data module does without Lightning; tests/integrations has it in real runs of a Trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from loaders import indices
from ranks import outputs_of_ranks
from trainers import SMALL

from gpuloader import BadImages, GPULoader
from gpuloader.errors import ConfigError, LoaderError, StateError
from gpuloader.loading.loader import run_of
from gpuloader.trainers.datamodule import TrainerLoaders
from gpuloader.trainers.wait_callback import WaitLogging


def alone(shards: list[Path], **kwargs: Any) -> TrainerLoaders:  # noqa: ANN401
    """A data module without a Trainer: five steps of eight samples an epoch."""
    return TrainerLoaders(shards, shards, shards, shards, **{"batch_size": 8, **SMALL, **kwargs})


def test_without_a_trainer_each_stage_has_its_loader(data: list[Path]) -> None:
    module = alone(data, seed=3)
    train = module.train_dataloader()
    assert isinstance(train, GPULoader)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert (train.device.type, train.world.world_size, run_of(train).plan.seed) == (device, 1, 3)
    for evaluation in (module.val_dataloader(), module.test_dataloader(), module.predict_dataloader()):
        assert indices(evaluation) == [list(range(first, first + 8)) for first in range(0, 40, 8)]
    module.teardown("fit")
    with pytest.raises(LoaderError, match="this loader is closed"):
        next(iter(train))


def test_without_a_trainer_each_loop_is_the_next_epoch_also_where_the_loader_is_asked_for_again(
    shards: list[Path],
) -> None:
    with GPULoader(shards, 8, "cpu", preset=SMALL["preset"], output="dict") as loader:
        planned = [indices(loader) for _ in range(3)]
    data = alone(shards)
    assert [indices(data.train_dataloader()) for _ in range(2)] == planned[:2]
    data.train_dataloader().sampler.set_epoch(2)
    assert indices(data.train_dataloader()) == planned[2]
    data.teardown("fit")


def test_without_a_trainer_training_goes_on_with_the_rest_of_a_state(shards: list[Path]) -> None:
    data = alone(shards)
    epoch = iter(data.train_dataloader())
    next(epoch)
    state = data.state_dict()
    rest = indices(epoch)
    data.teardown("fit")
    again = alone(shards, batch_size=16)  # of any batch size, as with the loader itself
    again.load_state_dict(state)
    assert np.concatenate(indices(again.train_dataloader())).tolist() == np.concatenate(rest).tolist()
    again.teardown("fit")


def test_a_stage_without_shards_has_no_loader() -> None:
    with pytest.raises(ConfigError, match=r"^val_dataloader\(\) gives the batches of 'val', which has no shards"):
        TrainerLoaders(batch_size=8).val_dataloader()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"sed": 1}, "sed"), ({"device_id": 0}, "device_id"), ({"eval_loader": {"world": None}}, "world")],
)
def test_arguments_that_are_not_the_modules_are_refused(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: allowed are GPULoader's arguments, except"):
        TrainerLoaders("shards/", batch_size=8, **arguments)


def test_without_a_trainer_the_state_is_that_of_a_checkpoint() -> None:
    data = TrainerLoaders("a.tar", batch_size=8)
    data.load_state_dict({"epoch": 3})
    data.teardown("fit")
    assert data.state_dict() == {"epoch": 3}


def test_a_checkpoint_of_something_else_is_refused() -> None:
    with pytest.raises(StateError, match=r"the checkpoint's state of the data module is .*, not a mapping"):
        TrainerLoaders("a.tar", batch_size=8).load_state_dict([])


class OnOneDevice:
    """A Trainer as far as the data module looks at it to make loaders."""

    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    distributed_sampler_kwargs = None


def test_evaluation_shares_the_values_and_leaves_out_what_training_replaces(shards: list[Path], tmp_path: Path) -> None:
    known = tmp_path / "bad.jsonl"
    known.touch()
    values = {"on_error": {"replace": True, "known": known}, "decoder": {"num_threads": 2}}
    data = TrainerLoaders(shards, shards, batch_size=8, **values, sampling={"steps_per_epoch": 2})
    data.trainer = OnOneDevice()
    train, val = run_of(data.train_dataloader().loader), run_of(data.val_dataloader().loader)
    assert (train.bad_images, train.num_threads, train.plan.steps) == (BadImages(replace=True, known=known), 2, 2)
    assert (val.bad_images, val.num_threads, val.plan.steps) == (BadImages(skip=True), 2, 5)
    data.teardown("fit")


MESH = """
from types import SimpleNamespace; import torch
from trainers import SMALL; from gpuloader.trainers.datamodule import TrainerLoaders
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data_parallel", "tensor_parallel"))
for seed in (0, rank):
    data = TrainerLoaders(arguments, batch_size=4, seed=seed, **SMALL)
    data.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cpu"), device_mesh=mesh))
    try: print(data.train_dataloader().loader.world.members)
    except ConfigError as error: print(error)
"""


def test_the_ranks_of_a_strategys_mesh_share_batches_and_are_compared(shards: list[Path], tmp_path: Path) -> None:
    said = "((0, 1),)\nthe loaders of the ranks differ: seed=0 on ranks [0]; seed=1 on ranks [1]\n"
    assert outputs_of_ranks(MESH, tmp_path, 2, *shards) == [said] * 2


class Reading:
    """A Trainer as far as the callback looks at it."""

    def __init__(self, train_dataloader: object) -> None:
        self.train_dataloader = train_dataloader


def test_the_wait_monitor_says_what_it_can_look_at() -> None:
    with pytest.raises(ConfigError, match="training reads from a list; allowed is a GPULoader: train with"):
        WaitLogging().on_train_epoch_start(Reading([]), None)


def test_the_wait_monitor_logs_what_the_loader_counts(shards: list[Path]) -> None:
    logged: list[dict[str, float]] = []
    callback, module = WaitLogging(every_steps=2), SimpleNamespace(log_dict=logged.append)
    loader = alone(shards).train_dataloader()
    callback.on_train_epoch_start(Reading(loader), module)
    for _ in loader:
        callback.on_train_batch_end()
    assert [each["gpuloader/batches"] for each in logged] == [2, 4]  # of five
    assert all(0 <= each["waiting_for_data"] <= 1 for each in logged)
    assert all(each.keys() - {"waiting_for_data"} == loader.stats().scalars().keys() for each in logged)


@pytest.mark.parametrize("function", [GPULoader.__init__, TrainerLoaders.__init__])
def test_annotations_can_be_read_at_runtime(function: Callable[..., None]) -> None:
    """As LightningCLI reads them; a forward reference would be an error here, and be shown as Unvalidated there."""
    assert get_type_hints(function)["batch_size"] is int
