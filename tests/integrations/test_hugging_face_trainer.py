"""`GPULoaderTrainer` in real runs: each batch at its turn, also after a restart, and each sample evaluated once.

transformers comes with scripts/test_integrations; elsewhere these tests skip. `test_trainers` has the example.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import CUT, SMALL, evaluation, loader, spoilt
from making import jpeg, write_shard
from torch.nn import functional

from gpuloader import BadImages, GPULoader, World
from gpuloader.errors import ConfigError, DataError, StateError

pytest.importorskip("transformers")

from transformers import EvalPrediction, TrainerCallback, TrainingArguments

from gpuloader.trainers.transformers import GPULoaderTrainer

BATCH = {"image": "pixel_values", "label": "labels", "index": "index"}
TRAIN = {"output": BATCH, "preset": {"imagenet_train": SMALL}}


class Net(torch.nn.Module):
    """A linear layer with dropout, which notes the samples that it trains on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 10))
        self.dropout = torch.nn.Dropout(0.3)
        self.seen: list[list[int]] = []

    def forward(
        self, pixel_values: torch.Tensor, labels: torch.Tensor, index: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        if self.training and index is not None:
            self.seen.append(index.tolist())
        logits = self.dropout(self.layer(pixel_values))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class Stop(TrainerCallback):
    """Ends the run after a step, as a kill after its checkpoint does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
        control.should_training_stop = state.global_step == self.step


def trainer(folder: str | Path, train: GPULoader | None, **given: Any) -> GPULoaderTrainer:  # noqa: ANN401
    names = ("eval_dataset", "compute_metrics", "callbacks")
    made = {key: given.pop(key) for key in names if key in given}
    arguments = {
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "num_train_epochs": 2,
        "save_steps": 1,
        "logging_steps": 1,
        "learning_rate": 0.1,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        **given,
    }
    return GPULoaderTrainer(Net(), TrainingArguments(str(folder), **arguments), train_dataset=train, **made)


def planned(shards: list[Path], epochs: int = 2, **kwargs: Any) -> list[list[int]]:  # noqa: ANN401
    with loader(shards, **{**TRAIN, **kwargs}) as batches:
        return [batch["index"].tolist() for _ in range(epochs) for batch in batches]


def weights(of: GPULoaderTrainer) -> torch.Tensor:
    return torch.cat([values.detach().flatten() for values in of.model.parameters()])


# --- training


@pytest.mark.parametrize(
    ("given", "steps", "epochs"),
    [
        ({"max_steps": 7}, 7, 2),  # in the middle of the second epoch
        ({"gradient_accumulation_steps": 2}, 10, 2),  # 2, 2 and 1 of five
    ],
    ids=str,
)
def test_each_epoch_has_the_loaders_batches(
    shards: list[Path], tmp_path: Path, given: dict[str, Any], steps: int, epochs: int
) -> None:
    with loader(shards, **TRAIN) as train:
        run = trainer(tmp_path, train, save_strategy="no", **given)
        run.train()
    assert run.model.seen == planned(shards, epochs)[:steps]
    logged = [log for log in run.state.log_history if "loss" in log]
    assert [log["gpuloader/samples"] for log in logged][-1] == 8 * steps
    assert [log["epoch"] for log in logged][-1] == pytest.approx(steps / 5)


@pytest.mark.parametrize(("step", "accumulated"), [(2, 1), (2, 2)])
def test_a_restart_goes_on_as_if_nothing_had_been(
    shards: list[Path], tmp_path: Path, accumulated: int, step: int
) -> None:
    """An epoch has five steps, or three of 2, 2 and 1 batches."""
    with loader(shards, **TRAIN) as train:
        whole = trainer(tmp_path / "whole", train, gradient_accumulation_steps=accumulated)
        whole.train()
    with loader(shards, **TRAIN) as train:
        stopped = trainer(tmp_path, train, gradient_accumulation_steps=accumulated, callbacks=[Stop(step)])
        stopped.train()
    with loader(shards, **TRAIN) as train:
        resumed = trainer(tmp_path, train, gradient_accumulation_steps=accumulated)
        resumed.train(resume_from_checkpoint=True)
    assert stopped.model.seen + resumed.model.seen == whole.model.seen
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.state.global_step == whole.state.global_step
    of_training = [
        [{key: log[key] for key in ("epoch", "step", "loss")} for log in run.state.log_history if "loss" in log]
        for run in (whole, resumed)
    ]
    assert of_training[0] == of_training[1]


@pytest.mark.parametrize("ranks", [1, 3, 13])
def test_a_run_goes_on_between_the_two_last_steps_on_any_number_of_ranks(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """40 samples on 3 x 13: one would be left for the last step, so the first takes 7 samples of each rank."""
    monkeypatch.setattr(GPULoaderTrainer, "_check", lambda *_: None)  # each rank runs in this process, alone

    def ids(rank: int, ranks: int, resumed: bool) -> list[list[int]]:
        options = {**TRAIN, "shuffle": "none", "last_batch": "partial", "world": World(rank, ranks)}
        with loader(shards, 39 // ranks, **options) as train:
            run = trainer(tmp_path, train, num_train_epochs=1, save_strategy="no" if resumed else "steps")
            run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1") if resumed else None)
        return run.model.seen

    assert [list(map(len, ids(rank, 3, resumed=False))) for rank in range(3)] == [[7, 6], [7, 6], [7, 7]]
    rest = [ids(rank, ranks, resumed=True) for rank in range(ranks)]
    assert {len(steps) for steps in rest} == {1}
    assert [sample for [step] in rest for sample in step] == list(range(21, 40))


@pytest.mark.parametrize(
    ("now", "given", "says"),
    [
        ({"seed": 1}, {}, r"the state has seed=0, this loader has seed=1"),
        (
            {"batch_size": 16},
            {"per_device_train_batch_size": 16},
            "Trainer resumes after 16 samples of epoch 1, but the",
        ),
        (
            {},
            {"ignore_data_skip": True},
            "Trainer resumes after 0 samples of epoch 0, but the checkpoint's state after",
        ),
    ],
    ids=str,
)
def test_a_restart_of_another_run_is_an_error(
    shards: list[Path], tmp_path: Path, now: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    with loader(shards, **TRAIN) as train:
        trainer(tmp_path, train, max_steps=3).train()
    with loader(shards, now.pop("batch_size", 8), **{**TRAIN, **now}) as train, pytest.raises(StateError, match=says):
        trainer(tmp_path, train, **given).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("made", "given", "says"),
    [
        ({"batch_size": 4}, {}, "batch_size=4, but TrainingArguments say 8"),
        ({"output": "tuple"}, {}, "gives tuples, but Trainer takes"),
        ({"world": World(1, 2)}, {}, "for rank 1 of 2, but this process is rank 0 of 1"),
        ({}, {"auto_find_batch_size": True}, "a GPULoader's batch size is fixed"),
    ],
    ids=str,
)
def test_a_loader_that_does_not_fit_the_arguments_is_refused(
    shards: list[Path], tmp_path: Path, made: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    with loader(shards, made.pop("batch_size", 8), **{**TRAIN, **made}) as train:
        run = trainer(tmp_path, train, **given)
        with pytest.raises(ConfigError, match=says):
            run.get_train_dataloader()


# --- evaluation


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, []),
        (
            {"dataloader_num_workers": 2, "dataloader_drop_last": True},
            ["dataloader_num_workers", "dataloader_drop_last"],
        ),
        ({"dataloader_persistent_workers": True, "data_seed": 3}, ["dataloader_persistent_workers", "data_seed"]),
        ({"train_sampling_strategy": "group_by_length"}, ["train_sampling_strategy"]),
    ],
)
def test_arguments_without_effect_are_told_once(
    shards: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, given: dict[str, Any], told: list[str]
) -> None:
    with loader(shards, **TRAIN) as train:
        trainer(tmp_path, train, max_steps=2, save_strategy="no", **given).train()
    messages = [message for message in caplog.messages if "no effect on a GPULoader" in message]
    assert len(messages) == bool(told)
    assert all(name in messages[0] for name in told)
    assert not told or messages[0].count("_") == sum(name.count("_") for name in told)


def metrics(prediction: EvalPrediction) -> dict[str, Any]:
    right = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"right": int(right.sum()), "samples": len(right), "labels": np.sort(prediction.label_ids).tolist()}


@pytest.mark.parametrize("last_batch", ["partial", "pad", "drop", "equal"])
def test_each_sample_counts_once_in_the_metrics_and_in_the_loss(
    shards: list[Path], tmp_path: Path, last_batch: str
) -> None:
    names = {"image": "pixel_values", "label": "labels"}
    with evaluation(shards, 12, last_batch=last_batch, output=names) as given:  # 12, 12, 12 and 4
        run = trainer(tmp_path, None, eval_dataset=given, compute_metrics=metrics, per_device_eval_batch_size=12)
        found = run.evaluate()
        assert run.evaluate()["eval_loss"] == found["eval_loss"]
        predicted = run.predict(given)
    with evaluation(shards, 40, last_batch="partial") as whole, torch.no_grad():
        images, labels = next(iter(whole))
        count = 36 if last_batch == "drop" else 40
        expected = run.model.eval()(images[:count], labels[:count])
    assert found["eval_samples"] == count
    assert found["eval_labels"] == sorted(labels[:count].tolist())
    assert found["eval_loss"] == pytest.approx(expected["loss"].item(), rel=1e-5)
    assert found["eval_right"] == (expected["logits"].argmax(1) == labels[:count]).sum()
    np.testing.assert_allclose(predicted.predictions, expected["logits"].numpy(), atol=1e-5)


def test_bad_images_are_left_out_of_the_metrics(tmp_path: Path) -> None:
    bad = dict.fromkeys([1, *range(12, 24), *range(36, 40)], CUT)  # one, all of a batch, and all of the last, short one
    good = [sample for sample in range(40) if sample not in bad]
    on_error = BadImages(skip=True, max_share=1)
    tar = spoilt(tmp_path, bad)
    with evaluation(tar, 12, output={"image": "pixel_values", "label": "labels"}, on_error=on_error) as given:
        run = trainer(tmp_path, None, eval_dataset=given, compute_metrics=metrics, per_device_eval_batch_size=12)
        found = run.evaluate()
    with evaluation(tar, 40, on_error=on_error) as whole, torch.no_grad():
        images, labels = next(iter(whole))
        expected = run.model.eval()(images, labels)["logits"].argmax(1) == labels
    assert found["eval_samples"] == len(good)
    assert found["eval_labels"] == sorted(sample % 10 for sample in good)
    assert found["eval_right"] == expected.sum()
    assert np.isfinite(found["eval_loss"])


def test_evaluation_in_training_changes_nothing_and_may_have_several_loaders(
    shards: list[Path], tmp_path: Path
) -> None:
    with (
        loader(shards, **TRAIN) as train,
        evaluation(shards, output=BATCH) as one,
        evaluation(shards[0], output=BATCH) as other,
    ):
        both = {"one": one, "other": other}
        run = trainer(tmp_path, train, eval_dataset=both, eval_strategy="steps", eval_steps=2, save_strategy="no")
        run.train()
    assert run.model.seen == planned(shards)
    evaluated = [log for log in run.state.log_history if "eval_one_loss" in log]
    assert [log["step"] for log in evaluated] == [2, 4, 6, 8, 10]
    assert not any("gpuloader/samples" in log for log in evaluated)
    assert len([log for log in run.state.log_history if "eval_other_loss" in log]) == 5


def test_other_classes_are_an_error_before_the_first_step(shards: list[Path], tmp_path: Path) -> None:
    """The loader for training has the labels 0 to 9 without names."""
    other = write_shard(tmp_path / "a.tar", [{"__key__": "0", "jpg": jpeg(40, 40), "cls": b"10"}])
    with (
        loader(shards, **TRAIN) as train,
        evaluation(shards, output=BATCH) as like,
        evaluation(other, output=BATCH) as further,
    ):
        for wrong in (further, {"like": like, "further": further}):
            run = trainer(tmp_path / "run", train, eval_dataset=wrong, save_strategy="no")
            for step in (run.train, run.evaluate):
                with pytest.raises(DataError, match="must have the same classes"):
                    step()
            assert run.model.seen == []
        run = trainer(tmp_path / "run", train, eval_dataset=like, save_strategy="no")
        with pytest.raises(DataError, match="must have the same classes"):
            run.evaluate(further)
        assert run.evaluate()["eval_loss"] > 0
        assert len(run.get_test_dataloader(further)) == 1  # data to predict


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"last_batch": "partial"}, "has last_batch='partial', but Trainer gathers batches of one size"),
        ({"last_batch": "pad", "on_error": "skip"}, "has on_error='skip', but Trainer gathers"),
        ({"sampling": {"buckets": [(32, 32), (24, 48)]}}, "has buckets, but Trainer gathers"),
    ],
    ids=str,
)
def test_what_ranks_cannot_gather_is_refused(
    shards: list[Path], tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    run = trainer(tmp_path, None)
    run.args = type("TwoRanks", (), {"eval_batch_size": 9, "process_index": 1, "world_size": 2})()
    with (
        evaluation(shards, 9, output=BATCH, world=World(1, 2), **options) as given,
        pytest.raises(ConfigError, match=says),
    ):
        run.get_eval_dataloader(given)


@pytest.mark.parametrize(("last_batch", "counted"), [("pad", 0), ("equal", 2)])
def test_padding_of_several_ranks_has_no_labels(
    shards: list[Path], tmp_path: Path, last_batch: str, counted: int
) -> None:
    run = trainer(tmp_path, None)
    run.args = type("TwoRanks", (), {"eval_batch_size": 9, "process_index": 1, "world_size": 2})()
    with evaluation(shards, 9, output=BATCH, world=World(1, 2), last_batch=last_batch) as given:
        *_, last = run.get_eval_dataloader(given)  # 4 of 40 samples are left
        assert (last["labels"] != -100).sum() == counted
