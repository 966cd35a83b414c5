"""Trains with transformers.Trainer, evaluates, and resumes in the middle of an epoch from a Trainer checkpoint.

python scripts/examples/hf_trainer.py --shards shards/train/ --val shards/val/ --output_dir out
torchrun --nproc_per_node 8 scripts/examples/hf_trainer.py ... --resume_from_checkpoint out/checkpoint-500
"""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import Any

import torch
from transformers import (
    EvalPrediction,
    HfArgumentParser,
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState

from gpuloader import GPULoader

BATCH = {"image": "pixel_values", "label": "labels"}


class LoaderTrainer(Trainer):
    """A Trainer whose datasets are loaders already."""

    def get_train_dataloader(self) -> GPULoader:
        return self.train_dataset

    def get_eval_dataloader(self, eval_dataset: GPULoader | None = None) -> GPULoader:
        return self.eval_dataset if eval_dataset is None else eval_dataset

    def prediction_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        padding = ~inputs.pop("valid")
        inputs["labels"] = inputs["labels"].masked_fill(padding, -100)  # which the loss ignores
        return super().prediction_step(model, inputs, *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any) -> None:
        super().log({**logs, **self.train_dataset.stats().scalars()}, *args)


class LoaderState(TrainerCallback, ExportableState):
    """Keeps the loader's state in Trainer's checkpoints, in trainer_state.json."""

    def __init__(self, loader: GPULoader) -> None:
        self.loader = loader

    def state(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.loader.load_state_dict(state.stateful_callbacks["LoaderState"])


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Of the samples that are no padding, and how many those are."""
    valid = prediction.label_ids != -100
    right = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": right[valid].mean(), "samples": valid.sum()}


def main() -> None:
    """Trains a small ResNet from scratch. All of TrainingArguments are options."""
    parser = HfArgumentParser(TrainingArguments, description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--val", required=True, help="shards to evaluate on")
    parser.add_argument("--size", type=int, default=224)
    parser.set_defaults(ignore_data_skip=True)  # the loader knows where it is
    arguments, options = parser.parse_args_into_dataclasses()

    train = GPULoader(
        options.shards,
        arguments.per_device_train_batch_size,
        preset={"imagenet_train": {"RandomResizedCrop": {"size": options.size}}},
        output=BATCH,
    )
    val = GPULoader(
        options.val,
        arguments.per_device_eval_batch_size,
        preset={"imagenet_eval": {"Resize": {"size": options.size}, "CenterCrop": {"size": options.size}}},
        last_batch="pad",  # Trainer gathers batches of one size
        output={**BATCH, "valid": "valid"},
    )
    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_labels=10)
    model = ResNetForImageClassification(config)
    model.accepts_loss_kwargs = False  # its loss is a mean over the samples of one batch
    trainer = LoaderTrainer(
        model,
        arguments,
        train_dataset=train,
        eval_dataset=val,
        compute_metrics=accuracy,
        callbacks=[LoaderState(train)],
    )
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    trainer.save_model()
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"{trainer.state.global_step} steps; {metrics['eval_samples']} samples, loss {metrics['eval_loss']:.4f}")


if __name__ == "__main__":
    main()
