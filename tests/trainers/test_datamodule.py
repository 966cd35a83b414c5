"""What Lightning's data module does without Lightning; tests/integrations has it in real runs of a Trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from false_values import taken
from loaders import indices
from making import jpeg, write_tree
from ranks import outputs_of_ranks
from trainers import SMALL

from gpuloader import BadImages, GPULoader, LabelFrom
from gpuloader.errors import ConfigError, DataError, LoaderError, StateError
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


def test_without_a_trainer_each_loop_is_the_next_epoch_also_of_the_loader_asked_for_again(shards: list[Path]) -> None:
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


def test_values_that_count_as_false_are_no_defaults(shards: list[Path]) -> None:
    assert taken(lambda value: TrainerLoaders(shards, batch_size=8, eval_loader=value)) == "{}"  # type: ignore[arg-type]
    assert taken(lambda value: alone(shards, last_batch=value).train_dataloader()) == ""


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


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of pictures: train and its like have a, b and c, other lacks b."""
    root, picture = tmp_path_factory.mktemp("splits"), jpeg(24, 32)
    names = {"train": "abc", "like": "abc", "other": "ac"}
    return {
        split: write_tree(root / split, {f"{name}/{number}.jpg": picture for name in classes for number in range(4)})
        for split, classes in names.items()
    }


@pytest.mark.parametrize("with_a_trainer", [True, False])
@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"train": "train", "val": "other"}, ["train"]),  # before the first step, whatever is asked for first
        ({"train": "train", "val": "other"}, ["val"]),
        ({"train": "train", "test": "other"}, ["test"]),
        ({"train": "train", "val": "like", "test": "other"}, ["train", "val", "test"]),
        ({"val": "train", "test": "other"}, ["test"]),
    ],
)
def test_stages_with_other_classes_are_an_error(
    splits: dict[str, Path], given: dict[str, str], asked: list[str], with_a_trainer: bool
) -> None:
    data = TrainerLoaders(**{stage: splits[name] for stage, name in given.items()}, batch_size=4, **SMALL)
    data.trainer = OnOneDevice() if with_a_trainer else None
    for stage in asked[:-1]:
        getattr(data, f"{stage}_dataloader")()
    with pytest.raises(DataError, match=r"'b' and 'c'.*\n.*\['a', 'b', 'c'\]\n.*\['a', 'c'\]\n"):
        getattr(data, f"{asked[-1]}_dataloader")()
    data.teardown("fit")


def test_data_to_predict_and_one_list_for_all_are_no_error(splits: dict[str, Path]) -> None:
    other = splits["other"]
    data = TrainerLoaders(splits["train"], splits["like"], predict=other, batch_size=4, **SMALL)
    assert [len(getattr(data, f"{stage}_dataloader")()) for stage in ("predict", "val", "train")] == [2, 3, 3]
    data.teardown("fit")
    numbered = LabelFrom("folder", classes=["a", "b", "c"])
    data = TrainerLoaders(splits["train"], other, other, batch_size=8, label_from=numbered, **SMALL)
    [batch] = data.val_dataloader()
    assert batch["label"].tolist() == [0] * 4 + [2] * 4
    assert data.test_dataloader().classes == data.train_dataloader().classes == ("a", "b", "c")
    data.teardown("fit")


def test_a_split_that_was_repaired_can_be_used_at_once(splits: dict[str, Path], tmp_path: Path) -> None:
    val = write_tree(tmp_path / "val", {f"{name}/0.jpg": jpeg(24, 32) for name in "ac"})
    data = TrainerLoaders(splits["train"], val, batch_size=4, **SMALL)
    with pytest.raises(DataError):
        data.val_dataloader()
    write_tree(val, {"b/0.jpg": jpeg(24, 32)})
    assert data.val_dataloader().classes == ("a", "b", "c")
    data.teardown("fit")


def test_a_loader_that_was_made_to_compare_has_the_trainers_place(splits: dict[str, Path]) -> None:
    data = TrainerLoaders(splits["train"], splits["like"], batch_size=4, **SMALL)
    data.val_dataloader()
    ranks = {"rank": 1, "num_replicas": 2}
    data.trainer = SimpleNamespace(strategy=OnOneDevice.strategy, distributed_sampler_kwargs=ranks)
    loaders = [data.val_dataloader().loader, data.train_dataloader().loader]
    assert [(each.device.type, each.world.rank, each.world.world_size) for each in loaders] == [("cpu", 1, 2)] * 2
    data.teardown("fit")
    for each in loaders:
        with pytest.raises(LoaderError, match="is closed"):
            iter(each)


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


@pytest.mark.parametrize("done", [1, 2])
def test_samples_are_left_out_from_the_first_batch_that_is_not_finished(shards: list[Path], done: int) -> None:
    before = alone(shards)
    planned = indices(before.train_dataloader())
    before.train_dataloader().seek(0, 2)
    state = before.state_dict()  # of a checkpoint after the second batch, which may have stopped the training
    before.teardown("fit")
    left_out = {planned[1][3], planned[2][0]}
    data = alone(shards, sampling={"leave_out": sorted(left_out)})
    data.load_state_dict(state)
    progress = SimpleNamespace(batch_progress=SimpleNamespace(current=SimpleNamespace(completed=done)))
    data.trainer = SimpleNamespace(
        strategy=OnOneDevice.strategy,
        distributed_sampler_kwargs=None,
        overfit_batches=0,
        current_epoch=0,
        training=True,
        num_training_batches=5,
        fit_loop=SimpleNamespace(epoch_loop=progress),
    )
    for found, step in zip(data.train_dataloader(), planned[done:], strict=True):
        rows = zip(found["index"].tolist(), found["valid"].tolist())
        assert [number for number, valid in rows if valid] == [number for number in step if number not in left_out]
    data.teardown("fit")


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
