"""What `GPULoaderDataModule` does, in whichever package Lightning comes: `lightning` or `pytorch_lightning`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any

from typing_extensions import Unpack

from gpuloader.errors import ConfigError, StateError, describe
from gpuloader.loading.argument_types import AnyFields, AnyOutput, AnyPreset, LoaderOptions
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
        shared: dict[str, Any] = {name: value for name, value in loader.items() if name in _IN_EVERY_STAGE}
        if "on_error" in shared:
            shared["on_error"] = replace(resolve_bad_images(shared["on_error"]), known=None)  # which are of train
        self._eval_loader = {"preset": eval_preset, **shared, **(eval_loader or {})}
        _check_names({**self._loader, **self._eval_loader})
        self._open: dict[str, GPULoader] = {}
        self._state: dict[str, Any] = {}  # the training loader's, of a checkpoint or from when it was closed

    def train_dataloader(self) -> TrainerEpochs:
        """The batches of training.

        Raises:
            ConfigError: there is no Trainer, or there are no shards for this stage; or what `GPULoader` raises.
        """
        tar, device_id, world = self._place("train")
        made = GPULoader(tar, self.batch_size, device_id, world=world, **self._loader)  # type: ignore[arg-type]
        return self._open_epochs("train", made)  # of any output

    def val_dataloader(self) -> TrainerEpochs:
        """The batches of validation, else as `train_dataloader`."""
        return self._evaluation("val")

    def test_dataloader(self) -> TrainerEpochs:
        """The batches of testing, else as `train_dataloader`."""
        return self._evaluation("test")

    def predict_dataloader(self) -> TrainerEpochs:
        """The batches of prediction, else as `train_dataloader`."""
        return self._evaluation("predict")

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

    def _evaluation(self, stage: str) -> TrainerEpochs:
        tar, device_id, world = self._place(stage)
        given = {"batch_size": self.batch_size, **self._eval_loader}
        return self._open_epochs(stage, GPULoader(tar, device_id=device_id, world=world, **given))

    def _place(self, stage: str) -> tuple[Sources, int | None, World]:
        """The stage's shards, and the device and the place among the ranks that the Trainer gives this process."""
        if self.trainer is None:
            raise ConfigError(
                f"{stage}_dataloader() of a data module without a Trainer, which says device, rank and epoch: give it "
                f"to one, such as trainer.fit(model, datamodule=...); without a Trainer, use GPULoader itself"
            )
        tar = self._shards[stage]
        if tar is None:
            raise ConfigError(
                f"the Trainer asks for the batches of {stage!r}, which has no shards: "
                f"give the data module {stage}=..., or the Trainer limit_{stage}_batches=0"
            )
        device = self.trainer.strategy.root_device
        share = self.trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
        world = World(share["rank"], share["num_replicas"])
        return tar, device.index if device.type == "cuda" else None, world

    def _open_epochs(self, stage: str, loader: GPULoader) -> TrainerEpochs:
        if stage in self._open:  # the Trainer reloads it
            self._open[stage].close()
        self._open[stage] = loader
        return TrainerEpochs(loader, self)

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


def _check_names(arguments: Mapping[str, Any]) -> None:
    parameters = signature(GPULoader).parameters.values()
    allowed = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} - _FROM_THE_TRAINER
    if unknown := sorted(set(arguments) - allowed):
        raise ConfigError(
            f"{', '.join(unknown)}: allowed are GPULoader's arguments, less those that the Trainer gives: "
            f"{', '.join(sorted(allowed))}"
        )
