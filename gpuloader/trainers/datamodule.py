"""What `GPULoaderDataModule` does, in whichever package Lightning comes: `lightning` or `pytorch_lightning`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any

from typing_extensions import Unpack

from gpuloader.errors import ConfigError, StateError, describe
from gpuloader.loading.argument_types import AnyDevice, AnyFields, AnyOutput, AnyPreset, LoaderOptions
from gpuloader.loading.arguments import resolve_bad_images
from gpuloader.loading.loader import GPULoader
from gpuloader.loading.selection import Sources
from gpuloader.loading.world import World

_IN_EVERY_STAGE = ("seed", "on_error", "decoder", "output", "fields", "label_from", "cache")
_FROM_THE_TRAINER = {"tar", "device_id", "world"}


class TrainingOptions(LoaderOptions, total=False):
    """Those of `GPULoader`'s keyword arguments that are not the Trainer's to say."""

    output: AnyOutput
    fields: AnyFields


class EvaluationOptions(TrainingOptions, total=False):
    """The same, and the batch size."""

    batch_size: int


class TrainerLoaders:
    """The hooks of a LightningDataModule: a `GPULoader` for each stage.

    A loader is made when the Trainer asks for it, on the Trainer's device, for this process's share of the data, and
    closed with the stage. Its epochs are the Trainer's, and training goes on at the batch where the Trainer stands.

    Without a Trainer the loaders are on the local rank's GPU where there is one, else on the CPU, and find their rank
    themselves. Each stage then has one, and each loop over it is the next epoch.

    Args:
        train: the shards to train on, as `GPULoader` takes them; None where nothing is trained.
        val: the shards to validate on.
        test: the shards to test on.
        predict: the shards to predict.
        batch_size: samples of each device in a step.
        eval_preset: the recipe for all but training, whose recipe is `preset`.
        eval_loader: arguments of `GPULoader` for all but training. Without them it shares `batch_size`, `seed`,
            `on_error` (less the images that are known to be bad), `decoder`, `output`, `fields`, `label_from` and
            `cache` with training.
        loader: arguments of `GPULoader` for training.

    Raises:
        ConfigError: an argument that `GPULoader` does not have, or that is the Trainer's to say.
    """

    trainer: Any = None  # Lightning's, from when it takes this

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
        self._eval_loader = evaluation_options(loader, eval_preset, eval_loader)
        self._open: dict[str, GPULoader] = {}
        self._state: dict[str, Any] = {}  # the training loader's, of a checkpoint or from when it was closed

    def train_dataloader(self) -> TrainerEpochs | GPULoader:
        """The batches of training: as the Trainer goes through them, or without a Trainer the loader itself.

        Raises:
            ConfigError: there are no shards for this stage; or what `GPULoader` raises.
        """
        return self._stage("train")

    def val_dataloader(self) -> TrainerEpochs | GPULoader:
        """The batches of validation, else as `train_dataloader`."""
        return self._stage("val")

    def test_dataloader(self) -> TrainerEpochs | GPULoader:
        """The batches of testing, else as `train_dataloader`."""
        return self._stage("test")

    def predict_dataloader(self) -> TrainerEpochs | GPULoader:
        """The batches of prediction, else as `train_dataloader`."""
        return self._stage("predict")

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the training loader, in plain JSON types; any rank's will do."""
        loader = self._open.get("train")
        return self._state if loader is None else {**loader.state_dict(), "global_batch": self._global_batch(loader)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Training that goes on in the middle of an epoch will compare its loader with this state."""
        if not isinstance(state_dict, Mapping):
            raise StateError(f"the checkpoint's state of the data module is no mapping but {describe(state_dict)}")
        self._state = state_dict

    def teardown(self, stage: str) -> None:
        """Closes the loaders; a state can still be asked for."""
        self._close()

    def on_exception(self, exception: BaseException) -> None:
        """The same, where Lightning calls no `teardown`."""
        self._close()

    def _close(self) -> None:
        self._state = self.state_dict()
        while self._open:
            self._open.popitem()[1].close()

    def _stage(self, stage: str) -> TrainerEpochs | GPULoader:
        opened = self._open.get(stage)
        if self.trainer is None:
            self._open[stage] = opened or self._alone(stage)
            return self._open[stage]
        if opened is not None:  # the Trainer reloads it
            opened.close()
        self._open[stage] = self._loader_of(stage, *self._place())
        return TrainerEpochs(self._open[stage], self)

    def _alone(self, stage: str) -> GPULoader:
        """The loader of a stage where there is no Trainer."""
        loader = self._loader_of(stage)
        if stage == "train" and self._state:
            loader.load_state_dict(self._state)
        return loader

    def _loader_of(self, stage: str, device_id: AnyDevice = "auto", world: World | None = None) -> GPULoader:
        tar = self._shards[stage]
        if tar is None:
            raise ConfigError(
                f"{stage}_dataloader() gives the batches of {stage!r}, which has no shards: "
                f"give the data module {stage}=..., or the Trainer limit_{stage}_batches=0"
            )
        own = self._loader if stage == "train" else self._eval_loader
        given: dict[str, Any] = {"batch_size": self.batch_size, **own}
        return GPULoader(tar, device_id=device_id, world=world, **given)

    def _place(self) -> tuple[int | None, World]:
        """The device and the place among the ranks that the Trainer gives this process."""
        device = self.trainer.strategy.root_device
        share = self.trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
        return device.index if device.type == "cuda" else None, World(share["rank"], share["num_replicas"])

    def _global_batch(self, loader: GPULoader) -> int:
        return self.batch_size * loader.world.world_size

    def _resume(self, loader: GPULoader, epoch: int, done: int) -> None:
        """Puts the training loader behind the first batches of an epoch."""
        global_batch = self._global_batch(loader)
        saved = self._state.get("global_batch", global_batch)
        if saved != global_batch:
            raise StateError(
                f"the checkpoint was saved in the middle of an epoch of batch_size x devices = {describe(saved)}, now "
                f"it is {global_batch}: resume with {describe(saved)}, or from a checkpoint of an epoch's end"
            )
        state = self._state or loader.state_dict()  # nothing is saved in a checkpoint of another data module
        loader.load_state_dict({**state, "epoch": epoch, "delivered": done * global_batch})


# Type checkers read the `Unpack`. jsonargparse finds the arguments in GPULoader itself, with defaults and descriptions.
TrainerLoaders.__init__.__annotations__["loader"] = Any


class TrainerEpochs:
    """A loader as Lightning iterates over it.

    Lightning calls `iter` more often than it begins an epoch, and before it has restored its progress: so nothing
    happens before the first batch is asked for. Where to begin is then read from the Trainer, not counted here: it
    knows which batches were trained on, also when it was interrupted in one.

    Attributes:
        loader: for `stats()` and `write_quarantine()`.
    """

    def __init__(self, loader: GPULoader, data: TrainerLoaders) -> None:
        self.loader = loader
        self._data = data

    def __len__(self) -> int:
        """The batches of a whole epoch, as `len(loader)`: Lightning itself counts those that are done."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """The batches of the Trainer's epoch, in training less those that are done."""
        trainer = self._data.trainer
        epoch = 0 if trainer.overfit_batches else trainer.current_epoch
        done = trainer.fit_loop.epoch_loop.batch_progress.current.completed if trainer.training else 0
        if done == 0:
            self.loader.set_epoch(epoch)
        elif done < trainer.num_training_batches:
            self._data._resume(self.loader, epoch, done)
        else:  # an epoch that was saved at its end: Lightning asks for more of it where max_steps is set
            return
        yield from self.loader

    def state_dict(self) -> dict[str, Any]:
        """Nothing, but Lightning warns of loaders that cannot tell.

        The state is the data module's: Lightning does not restore a loader's where a scheduler asks for the number of
        steps before.
        """
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing, see `state_dict`."""


def evaluation_options(
    training: Mapping[str, Any], eval_preset: AnyPreset, eval_loader: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of a loader for evaluation, which shares some with that for training.

    Raises:
        ConfigError: an argument that `GPULoader` does not have, or that is the Trainer's to say.
    """
    shared = {name: value for name, value in training.items() if name in _IN_EVERY_STAGE}
    if "on_error" in shared:
        shared["on_error"] = replace(resolve_bad_images(shared["on_error"]), known=None)  # which are of train
    evaluation = {"preset": eval_preset, **shared, **(eval_loader or {})}
    _check_names({**training, **evaluation})
    return evaluation


def _check_names(arguments: Mapping[str, Any]) -> None:
    parameters = signature(GPULoader).parameters.values()
    allowed = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} - _FROM_THE_TRAINER
    if unknown := sorted(set(arguments) - allowed):
        raise ConfigError(
            f"{', '.join(unknown)}: allowed are GPULoader's arguments, less those that the Trainer gives: "
            f"{', '.join(sorted(allowed))}"
        )
