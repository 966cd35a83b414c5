"""The code of `GPULoaderDataModule` for both of Lightning's packages: `lightning` and `pytorch_lightning`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from typing_extensions import Unpack

import gpuloader.targets  # noqa: F401 - it registers the fields that YAML names
from gpuloader.errors import ConfigError, StateError, describe
from gpuloader.loading.argument_types import AnyDevice, AnyFields, AnyOutput, AnyPreset, LoaderOptions
from gpuloader.loading.arguments import resolve_bad_images
from gpuloader.loading.class_lists import check_same_classes
from gpuloader.loading.loader import GPULoader, run_of
from gpuloader.loading.selection import Sources
from gpuloader.loading.world import World
from gpuloader.plan import Cursor

_IN_EVERY_STAGE = ("seed", "on_error", "decoder", "output", "fields", "label_from", "cache")
_DATA_PARALLEL = "data_parallel"  # the dimension of `ModelParallelStrategy` that divides the data
_log = logging.getLogger("gpuloader")


class TrainingOptions(LoaderOptions, total=False):
    """The keyword arguments of `GPULoader`, except those that the Trainer decides."""

    output: AnyOutput
    fields: AnyFields


class EvaluationOptions(TrainingOptions, total=False):
    """The same, with the batch size."""

    batch_size: int


class TrainerLoaders:
    """The hooks of a LightningDataModule: a `GPULoader` for each stage.

    A loader is made when the Trainer asks for it, on the Trainer's device, for this process's share of the data, and is
    closed with the stage. Its epochs are the Trainer's, and training resumes at the Trainer's batch. `train`, `val` and
    `test` each open `train` and `val` before the first step, because all of them must have the same classes.

    Without a Trainer the loaders are on the local rank's GPU if there is one, otherwise on the CPU, and find their rank
    themselves. Each stage then has one, and each loop over it is the next epoch.

    Args:
        train: the shards to train on, as `GPULoader` takes them; None if nothing is trained.
        val: the shards to validate on.
        test: the shards to test on.
        predict: the shards to predict.
        batch_size: samples of each device in a step.
        eval_preset: the recipe for every stage but training, whose recipe is `preset`.
        eval_loader: arguments of `GPULoader` for every stage but training. Those stages share `batch_size`, `seed`,
            `on_error` (without the known bad images), `decoder`, `output`, `fields`, `label_from` and `cache` with
            training, unless they are given here. They skip bad images that training replaces.
        loader: arguments of `GPULoader` for training.

    Raises:
        ConfigError: an argument that `GPULoader` does not have, or that the Trainer decides.
    """

    trainer: Any = None  # Lightning sets it when a Trainer takes this

    def __init__(
        self,
        train: Sources | None = None,
        val: Sources | None = None,
        test: Sources | None = None,
        predict: Sources | None = None,
        *,
        batch_size: int,
        eval_preset: AnyPreset = "imagenet_eval",
        eval_loader: EvaluationOptions | None = None,
        **loader: Unpack[TrainingOptions],
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self._shards = {"train": train, "val": val, "test": test, "predict": predict}
        self._loader = loader
        self._eval_loader = _evaluation_options(loader, eval_preset, eval_loader)
        self._open: dict[str, GPULoader] = {}
        self._ahead: dict[tuple[str, AnyDevice, World | None], GPULoader] = {}  # compared, and not yet asked for
        self._state: dict[str, Any] = {}  # the training loader's, from a checkpoint or from when it was closed

    def train_dataloader(self) -> TrainerEpochs | GPULoader:
        """Returns the training batches in the order that the Trainer needs, or without a Trainer the loader itself.

        Raises:
            ConfigError: this stage has no shards.
            DataError: the classes of two stages differ; also what `GPULoader` raises.
        """
        return self._stage("train")

    def val_dataloader(self) -> TrainerEpochs | GPULoader:
        """Returns the validation batches, as `train_dataloader` does."""
        return self._stage("val")

    def test_dataloader(self) -> TrainerEpochs | GPULoader:
        """Returns the test batches, as `train_dataloader` does."""
        return self._stage("test")

    def predict_dataloader(self) -> TrainerEpochs | GPULoader:
        """Returns the batches to predict, as `train_dataloader` does."""
        return self._stage("predict")

    def state_dict(self) -> dict[str, Any]:
        """Returns the training loader's state for a checkpoint, in plain JSON types. Save it on any rank."""
        loader = self._open.get("train")
        if loader is None:
            return self._state
        state, plan = loader.state_dict(), run_of(loader).plan
        following = plan.state(Cursor(state["epoch"] + 1))
        return {**state, "global_batch": plan.global_batch, "ranks": plan.world_size, "following": following}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a checkpoint's state. Resuming in the middle of an epoch compares the training loader with it."""
        if not isinstance(state_dict, Mapping):
            raise StateError(f"the checkpoint's state of the data module is {describe(state_dict)}, not a mapping")
        self._state = state_dict

    def teardown(self, stage: str) -> None:
        """Closes the loaders; `state_dict` still works."""
        self._close()

    def on_exception(self, exception: BaseException) -> None:
        """Closes the loaders after an exception, because Lightning then does not call `teardown`."""
        self._close()

    def _close(self) -> None:
        self._state = self.state_dict()
        while opened := self._open or self._ahead:
            opened.popitem()[1].close()

    def _stage(self, stage: str) -> TrainerEpochs | GPULoader:
        opened = self._open.get(stage)
        if self.trainer is None:
            if opened is None:
                opened = self._loader_of(stage)
                if stage == "train" and self._state:
                    opened.load_state_dict(self._state)
                self._open[stage] = opened
            return opened
        if opened is not None:  # the Trainer reloads it
            self._state = self._state or (self.state_dict() if stage == "train" else {})
            opened.close()
        self._open[stage] = self._loader_of(stage, *self._place())
        return TrainerEpochs(self._open[stage], self)

    def _loader_of(self, stage: str, device_id: AnyDevice = "auto", world: World | None = None) -> GPULoader:
        """Returns the loader of a stage, and makes those of training and validation to compare the classes."""
        place = device_id, world
        loader = self._ahead.pop((stage, *place), None) or self._make(stage, *place)
        if stage != "predict":
            known = {**{name: each for (name, *_), each in self._ahead.items()}, **self._open, stage: loader}
            lacking = [name for name in ("train", "val") if name not in known and self._shards[name] is not None]
            ahead = {name: self._make(name, *place) for name in lacking}
            known.pop("predict", None)
            check_same_classes({**known, **ahead}, "train")
            self._ahead |= {(name, *place): each for name, each in ahead.items()}
        return loader

    def _make(self, stage: str, device_id: AnyDevice, world: World | None) -> GPULoader:
        tar = self._shards[stage]
        if tar is None:
            raise ConfigError(
                f"{stage}_dataloader() gives the batches of {stage!r}, which has no shards: "
                f"give the data module {stage}=..., or the Trainer limit_{stage}_batches=0"
            )
        if stage == "train":  # said outright: jsonargparse reads here which arguments LightningCLI can take
            return GPULoader(tar, self.batch_size, device_id, world=world, **self._loader)
        options: dict[str, Any] = {"batch_size": self.batch_size, **self._eval_loader}
        return GPULoader(tar, device_id=device_id, world=world, **options)

    def _place(self) -> tuple[int | None, World]:
        """Returns the device and the rank that the Trainer gives this process."""
        strategy = self.trainer.strategy
        device, mesh = strategy.root_device, getattr(strategy, "device_mesh", None)
        if mesh is not None and _DATA_PARALLEL in (mesh.mesh_dim_names or ()):
            world = World.from_mesh(mesh, _DATA_PARALLEL)
        else:
            share = self.trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
            world = World(share["rank"], share["num_replicas"])
        return device.index if device.type == "cuda" else None, world

    def _resume(self, loader: GPULoader, epoch: int, done: int) -> None:
        """Moves the training loader past the finished batches of an epoch, by the checkpoint's state if any."""
        state, self._state = self._state or loader.state_dict(), {}  # a checkpoint of another data module has no state
        if done:
            _check_global_batch(loader, state)
            loader.load_state_dict(state)
            loader.seek(epoch, done, ranks=state.get("ranks"))  # the ranks of the checkpoint
            # An interrupted step comes again, with the samples that are left out: its place is before the checkpoint's.
            loader.load_state_dict({**loader.state_dict(), "left_out": state.get("left_out", [])})
            return
        following = state.get("following") if state.get("epoch") != epoch else None
        place = following if isinstance(following, Mapping) else {}
        try:
            loader.load_state_dict({**state, "delivered": 0, **place})  # the epoch of a source may span two
        except StateError as error:
            _log.info(
                "epoch %d starts at its beginning, because the checkpoint's place cannot be used: %s", epoch, error
            )
        loader.seek(epoch)


# Type checkers read the `Unpack`. jsonargparse finds the arguments in GPULoader itself, with defaults and descriptions.
TrainerLoaders.__init__.__annotations__["loader"] = Any


class TrainerEpochs:
    """A loader as an iterable for Lightning.

    Lightning calls `iter` more often than it begins an epoch, and before it has restored its progress, so nothing
    happens until the first batch is asked for. The start is then read from the Trainer instead of counted here: it
    knows which batches were trained on, even if it was interrupted during one.

    Attributes:
        loader: for `stats()` and `write_quarantine()`.
    """

    def __init__(self, loader: GPULoader, data: TrainerLoaders) -> None:
        self.loader = loader
        self._data = data

    def __len__(self) -> int:
        """Returns the number of batches in a full epoch, because Lightning itself counts the finished batches."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of the Trainer's epoch; in training, without the finished batches."""
        trainer = self._data.trainer
        epoch = 0 if trainer.overfit_batches else trainer.current_epoch
        done = trainer.fit_loop.epoch_loop.batch_progress.current.completed if trainer.training else 0
        if done == 0 and not (trainer.training and self._data._state):
            self.loader.set_epoch(epoch)
        elif done < trainer.num_training_batches:
            self._data._resume(self.loader, epoch, done)
        else:  # an epoch that was saved at its end: Lightning asks for more of it if max_steps is set
            return
        yield from self.loader

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing; it exists because Lightning warns about loaders without a state.

        The data module keeps the state: Lightning does not restore a loader's if a scheduler asked for the number of
        steps before.
        """
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing; see `state_dict`."""


def _check_global_batch(loader: GPULoader, state: Mapping[str, Any]) -> None:
    """Checks that steps of a checkpoint's epoch are steps of the loader."""
    global_batch = run_of(loader).plan.global_batch
    saved = state.get("global_batch", global_batch)
    if not isinstance(saved, int) or saved != global_batch:
        raise StateError(
            f"the checkpoint was saved in the middle of an epoch with batch_size x devices = {describe(saved)}; "
            f"now it is {global_batch}: resume with {describe(saved)}, or from a checkpoint at an epoch's end"
        )


def _evaluation_options(
    training: Mapping[str, Any], eval_preset: AnyPreset, eval_loader: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the arguments of a loader for evaluation; raises ConfigError for an argument that it does not take."""
    if not isinstance({} if eval_loader is None else eval_loader, Mapping):
        raise ConfigError(f"eval_loader={describe(eval_loader)}: allowed is a mapping of GPULoader's arguments")
    shared = {name: value for name, value in training.items() if name in _IN_EVERY_STAGE}
    if "on_error" in shared:
        on_error = resolve_bad_images(shared["on_error"])
        skip = on_error.skip or on_error.replace  # replacements would count as samples
        shared["on_error"] = replace(on_error, replace=False, skip=skip, known=None)  # `known` is for train
    evaluation = {"preset": eval_preset, **shared, **(eval_loader or {})}
    allowed = EvaluationOptions.__optional_keys__
    if unknown := sorted({*training, *evaluation} - allowed):
        raise ConfigError(
            f"{', '.join(unknown)}: allowed are GPULoader's arguments, except those that the Trainer gives: "
            f"{', '.join(sorted(allowed))}"
        )
    return evaluation
