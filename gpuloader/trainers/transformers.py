"""`GPULoaderTrainer`: the Trainer of Hugging Face's transformers, which trains and evaluates from GPULoaders.

Trainer counts the batches of an epoch, and after a restart it skips the finished ones. Here batches are found by their
number, so skipping costs nothing. Accelerate never sees the loaders, so it does not split them again. In evaluation, it
is told how many samples of the last batch are not padding.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from gpuloader.base.values import as_tuple
from gpuloader.errors import ConfigError, InstallationError, StateError
from gpuloader.loading.class_lists import check_same_classes
from gpuloader.loading.loader import GPULoader, run_of

try:
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.state import GradientState
    from accelerate.utils import find_batch_size
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise InstallationError(
        f"GPULoaderTrainer needs transformers and accelerate: pip install transformers accelerate ({error})"
    ) from error

__all__ = ["GPULoaderTrainer"]

_OF_A_DATALOADER = re.compile("dataloader_(?!pin_memory).*|data_seed|.*_by_length|length_column.*|train_sampling.*")
_log = logging.getLogger("gpuloader")
_IGNORED = -100  # the label that losses of torch and transformers ignore


class GPULoaderTrainer(Trainer):
    """A `transformers.Trainer` whose `train_dataset` and `eval_dataset` may be `GPULoader`s.

    A loader selects its rank's part of the data itself. Its `batch_size` must be `per_device_train_batch_size` or
    `per_device_eval_batch_size`, and its `output` names what the model takes, such as `{"image": "pixel_values",
    "label": "labels"}`. On several ranks, a loader for evaluation needs `last_batch="equal"` or "pad"; padding is
    ignored in the metrics, and in the loss of models that ignore the label -100. On one rank, `on_error="skip"` skips
    bad images in evaluation.

    Each checkpoint has the training loader's state. `train(resume_from_checkpoint=...)` resumes at the next batch, even
    in the middle of an epoch. The number of ranks may change if the global batch stays the same. Each training log has
    the numbers of `stats().scalars()`.

    To change more, subclass it, or combine it with another subclass of Trainer: `class Mine(GPULoaderTrainer, Other)`.

    Raises:
        ConfigError: when a loader is used that does not fit the arguments.
        DataError: when a loader for evaluation has other classes than the loader for training.
        StateError: when training resumes with another recipe, data, seed or place than in the checkpoint.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        given = [each.name for each in fields(self.args) if getattr(self.args, each.name) != each.default]
        if unused := [name for name in given if _OF_A_DATALOADER.fullmatch(name)]:
            _log.warning("%s: no effect on a GPULoader; give the loader its own arguments", ", ".join(unused))
        self.add_callback(GPULoaderState())

    def get_train_dataloader(self) -> Any:  # noqa: ANN401
        """Returns the batches of the training loader."""
        if not isinstance(self.train_dataset, GPULoader):
            return super().get_train_dataloader()
        if self.args.auto_find_batch_size:
            raise ConfigError("auto_find_batch_size: a GPULoader's batch size is fixed")
        self._check("train", self.train_dataset, self._train_batch_size)
        self._check_classes()
        return _TrainingBatches(_Steps(self.train_dataset))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:  # noqa: ANN401
        """Returns the batches of an evaluation loader: `eval_dataset`, one by its name, or None for the only one."""
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        data = self.eval_dataset[data] if isinstance(data, str) else data
        self._check_classes(data)
        return self._evaluation(data) if isinstance(data, GPULoader) else super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:  # noqa: ANN401
        """Returns the batches of a loader to predict."""
        if isinstance(test_dataset, GPULoader):
            return self._evaluation(test_dataset)
        return super().get_test_dataloader(test_dataset)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Adds the numbers of the training loader's `stats()` to the training logs."""
        if "loss" in logs and isinstance(self.train_dataset, GPULoader):
            logs = {**logs, **self.train_dataset.stats().scalars()}
        super().log(logs, *args, **kwargs)

    def _evaluation(self, loader: GPULoader[Any]) -> _EvaluationBatches:
        self._check("eval", loader, self.args.eval_batch_size)
        plan = run_of(loader).plan
        if plan.source.quantum is not None:
            raise ConfigError(
                "the evaluation loader has buckets, but Trainer gathers batches of one size, with padding at the end: "
                "evaluate without Sampling(buckets=)"
            )
        if plan.last_batch == "partial" and plan.world_size > 1 and plan.length % plan.global_batch:
            raise ConfigError(
                "the evaluation loader has last_batch='partial', but Trainer gathers batches of one size from all "
                "ranks: give the loader last_batch='equal' or 'pad'"
            )
        if plan.world_size > 1 and run_of(loader).bad_images.skip:
            raise ConfigError(
                "the evaluation loader has on_error='skip', but Trainer gathers batches of one size from all ranks: "
                "evaluate on one rank, or pack the shards again (`gpuloader pack` drops bad images) and use "
                "another on_error"
            )
        return _EvaluationBatches(loader, self.label_names)

    def _check_classes(self, evaluated: Any = None) -> None:  # noqa: ANN401
        """Compares the classes of the loaders for training and evaluation, and of one more to evaluate."""
        several = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"eval_dataset": self.eval_dataset}
        data = {**several, "train_dataset": self.train_dataset, "the data to evaluate": evaluated}
        check_same_classes({name: each for name, each in data.items() if isinstance(each, GPULoader)}, "train_dataset")

    def _check(self, stage: str, loader: GPULoader[Any], batch_size: int) -> None:
        if loader.batch_size != batch_size:
            raise ConfigError(
                f"{stage}_dataset is a GPULoader with batch_size={loader.batch_size}, but TrainingArguments say "
                f"{batch_size}: make it with batch_size=args.per_device_{stage}_batch_size"
            )
        if run_of(loader).make is as_tuple:
            raise ConfigError(
                f"{stage}_dataset gives tuples, but Trainer takes what the model takes by name: "
                f'make it with output={{"image": "pixel_values", "label": "labels"}}'
            )
        here, ranks = (self.args.process_index, self.args.world_size), (loader.world.rank, loader.world.world_size)
        if here != ranks:
            raise ConfigError(
                f"{stage}_dataset is a GPULoader for rank {ranks[0]} of {ranks[1]}, but this process is rank {here[0]} "
                f"of {here[1]} for Trainer: leave world= out, and start the ranks with torchrun"
            )


class GPULoaderState(TrainerCallback, ExportableState):
    """A callback that keeps the training loader's state in trainer_state.json, and compares it on resuming."""

    def __init__(self) -> None:
        self.saved: dict[str, Any] | None = None
        self._loader: GPULoader[Any] | None = None

    def state(self) -> dict[str, Any]:
        loader = self._loader
        saved = None if loader is None else {**loader.state_dict(), "ranks": loader.world.world_size}
        return {"args": {}, "attributes": {"saved": saved}}

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:  # noqa: ANN401
        """Compares the checkpoint's state, if training resumes from one."""
        steps = getattr(train_dataloader, "dataset", None)
        if not isinstance(steps, _Steps):
            return
        of_checkpoint = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        saved = of_checkpoint["attributes"]["saved"]
        self._loader = steps.loader
        if state.global_step and saved is not None:
            steps.resume(saved)


class _Steps(Dataset[Any]):
    """The training loader's batches by number in the epoch; Trainer asks for them in order, from any number on.

    Attributes:
        epoch: of the next batches.
    """

    def __init__(self, loader: GPULoader[Any]) -> None:
        self.loader = loader
        self.epoch = 0
        self._batches: Iterator[Any] = iter(())
        self._next: int | None = None  # the number of the next batch; None before the epoch's first
        self._saved: dict[str, Any] | None = None
        self._ranks: int | None = None  # the ranks of the checkpoint

    def __len__(self) -> int:
        """Returns the number of samples in an epoch over all ranks, which Trainer reports."""
        return _delivered(self.loader)

    def __getitem__(self, step: int) -> Any:  # noqa: ANN401
        if step != self._next:
            self._begin(step)
        self._next = step + 1
        return next(self._batches)

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self._next = epoch, None

    def resume(self, state: dict[str, Any]) -> None:
        """Takes the state of a checkpoint; the next batch must be the one that follows it."""
        self.loader.load_state_dict(state)
        plan = run_of(self.loader).plan
        self._saved = plan.state(plan.at_step(plan.resume(state)[1]))
        self._ranks = None if plan.on(ranks := state.get("ranks")) is plan else ranks

    def _begin(self, step: int) -> None:
        self.loader.seek(self.epoch, step, ranks=self._ranks)  # the ranks of the checkpoint
        place = self.loader.state_dict()
        saved, self._saved, self._ranks = self._saved, None, None
        if saved is not None and not saved.items() <= place.items():
            raise StateError(
                f"Trainer resumes after {place['delivered']} samples of epoch {place['epoch']}, but the checkpoint's "
                f"state after {saved['delivered']} samples of epoch {saved['epoch']}: resume with the same "
                f"batch size x ranks, steps_per_epoch and gradient_accumulation_steps as before, and without "
                f"ignore_data_skip"
            )
        self._batches = iter(self.loader)


class _StepNumbers:
    """The numbers of an epoch's batches, as a batch sampler, which Trainer tells the epoch and Accelerate can skip."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return len(self._steps.loader)

    def __iter__(self) -> Iterator[list[int]]:
        return ([step] for step in range(len(self)))

    def set_epoch(self, epoch: int) -> None:
        self._steps.set_epoch(epoch)


class _TrainingBatches(DataLoader[Any]):
    """The training loader as a DataLoader in which an item is a batch, so that Accelerate can skip batches."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        numbers: Any = _StepNumbers(steps)
        # With a generator of its own, it does not draw from torch's: dropout would change.
        super().__init__(steps, batch_sampler=numbers, collate_fn=itemgetter(0), generator=torch.Generator())

    def set_epoch(self, epoch: int) -> None:
        self._steps.set_epoch(epoch)


class _EvaluationBatches(DataLoaderStateMixin):
    """The batches of a loader for evaluation, with what Accelerate must know to gather them without the padding.

    Accelerate cuts the gathered last batch after `remainder` samples, because padding is at its end.
    """

    def __init__(self, loader: GPULoader[Any], label_names: Sequence[str]) -> None:
        self._loader = loader
        self._label_names = label_names
        self.dataset = range(_delivered(loader))  # Accelerate asks for its length
        self.total_batch_size = run_of(loader).plan.global_batch
        self._drop_last = False
        self._skips = run_of(loader).bad_images.skip
        self.gradient_state = GradientState()

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        try:
            self._loader.set_epoch(0)  # so that each evaluation is the same
            some = (batch for batch in self._loader if not self._skips or find_batch_size(batch))
            for batch, following in pairwise(chain(some, [None])):
                self.end_of_dataloader = following is None
                yield self._last(batch) if self.end_of_dataloader else batch
        finally:
            self.end()

    def _last(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns the last batch of this rank; its padding has the label that losses ignore."""
        if self._skips:  # there is no padding
            self.remainder = find_batch_size(batch)
            return batch
        plan = run_of(self._loader).plan
        padding = torch.from_numpy(~plan.batch(plan.at(0, len(self) - 1)).valid)
        labels = {name: batch[name].clone() for name in self._label_names if name in batch}
        for values in labels.values():
            if not values.is_floating_point():
                values[padding.to(values.device)] = _IGNORED
        return {**batch, **labels}


def _delivered(loader: GPULoader[Any]) -> int:
    """Returns the number of samples in an epoch over all ranks, without padding and dropped samples."""
    plan = run_of(loader).plan
    return min(plan.length, plan.steps * plan.global_batch)
