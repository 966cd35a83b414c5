"""Trains with transformers.Trainer, evaluates, and resumes in the middle of an epoch from a Trainer checkpoint.

python scripts/examples/hf_trainer.py --shards shards/train/ --val shards/val/ --output_dir out
torchrun --nproc_per_node 8 scripts/examples/hf_trainer.py ... --resume_from_checkpoint out/checkpoint-500
"""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter

from transformers import EvalPrediction, HfArgumentParser, ResNetConfig, ResNetForImageClassification, TrainingArguments

from gpuloader import GPULoader
from gpuloader.trainers.transformers import GPULoaderTrainer

BATCH = {"image": "pixel_values", "label": "labels"}  # as the model names them


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """The share of right predictions, and of how many samples."""
    right = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": right.mean(), "samples": len(right)}


def main() -> None:
    """Trains a small ResNet from scratch. All of TrainingArguments are options."""
    parser = HfArgumentParser(TrainingArguments, description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--val", required=True, help="shards to evaluate on")
    parser.add_argument("--size", type=int, default=224)
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
        last_batch="pad",  # Trainer gathers batches of one size from all ranks
        output=BATCH,
    )
    config = ResNetConfig(
        embedding_size=24, hidden_sizes=[24, 48, 96], depths=[1, 1, 1], layer_type="basic", num_labels=10
    )
    model = ResNetForImageClassification(config)
    model.accepts_loss_kwargs = False  # its loss is a mean over the samples of one batch
    trainer = GPULoaderTrainer(model, arguments, train_dataset=train, eval_dataset=val, compute_metrics=accuracy)
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    trainer.save_model()
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        accuracy_and_loss = f"accuracy {metrics['eval_accuracy']:.1%}, loss {metrics['eval_loss']:.4f}"
        print(f"{trainer.state.global_step} steps; {metrics['eval_samples']} samples, {accuracy_and_loss}")


if __name__ == "__main__":
    main()
