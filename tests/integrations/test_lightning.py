"""`GPULoaderDataModule` in real runs of a Lightning Trainer, on the CPU."""
# ruff: noqa: ANN401 - Lightning's classes are of one package or the other

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed: the extra `lightning` has it")

from learned import check_that_it_learned  # noqa: E402
from making import jpeg, write_tree  # noqa: E402
from trainers import SMALL, Step, model, trainer  # noqa: E402

from gpuloader import GPULoader, Sampling, Stats, World  # noqa: E402
from gpuloader.errors import DataError, LoaderError, StateError  # noqa: E402
from gpuloader.targets import to_detr  # noqa: E402
from gpuloader.trainers.lightning import GPULoaderDataModule  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "scripts" / "examples"
PAGE = ROOT / "docs" / "lightning.md"
TESTS = Path(__file__).parents[1] / "support"

# Lightning's own: of its use of torch, and of checkpoints that are resumed without the callback that saved them.
no_validation = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
pytestmark = pytest.mark.filterwarnings(r"ignore:.*LeafSpec.*:FutureWarning", "ignore:Be aware that when using `ckpt_p")

EVERY_STEP = {"every_n_train_steps": 1}
EPOCH_ENDS = {"every_n_epochs": 1, "save_on_train_epoch_end": True}
AFTER_VALIDATION = {"every_n_epochs": 1, "save_on_train_epoch_end": False}
BY_STEPS = {"max_steps": 8, "max_epochs": -1}


@pytest.fixture(scope="module")
def tar(shards: list[Path]) -> list[str]:
    return list(map(str, shards))


def data(tar: list[str], **kwargs: Any) -> GPULoaderDataModule:
    """Five steps of eight samples an epoch."""
    return GPULoaderDataModule(tar, tar, **{"batch_size": 8, **SMALL, **kwargs})


def planned(tar: list[str], epoch: int, **kwargs: Any) -> list[list[int]]:
    """The ids of each batch of an epoch, by the loader alone."""
    arguments = {"preset": SMALL["preset"], "output": "dict", **kwargs}
    with GPULoader(tar, 8, None, **arguments) as loader:
        loader.set_epoch(epoch)
        return [batch["index"].tolist() for batch in loader]


def fit(tar: list[str], folder: Path, ckpt_path: Path | None = None, **kwargs: Any) -> Any:
    """The model after a run."""
    trained = model(lightning)
    trainer(lightning, folder, **kwargs).fit(trained, datamodule=data(tar), ckpt_path=ckpt_path)
    return trained


def checkpoints(lightning: ModuleType, folder: Path, **when: Any) -> Any:
    return lightning.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, **when)


def in_order(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints with the number of steps that were done."""
    return sorted((torch.load(path, weights_only=True)["global_step"], path) for path in folder.glob("*.ckpt"))


# --- epochs


def test_the_epochs_are_those_of_the_loader_whatever_lightning_does_between_them(
    tar: list[str], tmp_path: Path
) -> None:
    trained = fit(tar, tmp_path, max_epochs=3, num_sanity_val_steps=1, val_check_interval=2)
    assert trained.steps["train"] == [
        Step(epoch, step, ids) for epoch in range(3) for step, ids in enumerate(planned(tar, epoch))
    ]
    validation = [list(range(first, first + 8)) for first in range(0, 40, 8)]
    assert [step.ids for step in trained.steps["val"]] == 2 * 3 * validation


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"limit_train_batches": 0.4}, [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ({"max_steps": 6}, [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]),
        ({"overfit_batches": 2}, [(0, 0), (0, 1), (0, 0), (0, 1)]),  # the same batches in every epoch
    ],
)
def test_a_shorter_epoch_begins_as_the_whole_one(
    tar: list[str], tmp_path: Path, limits: dict[str, Any], expected: list[tuple[int, int]]
) -> None:
    trained = fit(tar, tmp_path, **limits)
    epochs = [planned(tar, epoch) for epoch in range(2)]
    assert [step.ids for step in trained.steps["train"]] == [epochs[epoch][step] for epoch, step in expected]


def test_every_stage_has_its_own_data_and_arguments(tar: list[str], tmp_path: Path) -> None:
    run, tested = trainer(lightning, tmp_path), model(lightning)
    evaluation = {**SMALL["eval_loader"], "batch_size": 16}
    stages = {"test": tar[1:], "predict": tar, "eval_loader": evaluation}
    module = data(tar[:1], **stages, fields=["json"], sampling=Sampling(steps_per_epoch=2))
    run.fit(tested, datamodule=module)
    run.test(tested, datamodule=module, verbose=False)
    predicted = run.predict(tested, datamodule=module)
    assert [len(step.ids) for step in tested.steps["train"]] == [8, 8, 8, 8]
    assert [step.ids for step in tested.steps["test"]] == [list(range(16)), list(range(16, 20))]
    assert torch.cat(predicted).tolist() == list(range(40))


@pytest.mark.parametrize(
    ("run", "kwargs"),
    [("fit", {}), ("fit", {"num_sanity_val_steps": 0, "check_val_every_n_epoch": 2}), ("validate", {}), ("test", {})],
)
def test_other_classes_are_an_error_before_the_first_step(tmp_path: Path, run: str, kwargs: dict[str, Any]) -> None:
    train, other = (
        str(write_tree(tmp_path / names, {f"{name}/{i}.jpg": jpeg(24, 32) for name in names for i in range(8)}))
        for names in ("abc", "ac")
    )
    module, unused = GPULoaderDataModule(train, other, other, batch_size=8, **SMALL), model(lightning)
    with pytest.raises(DataError, match="must have the same classes"):
        getattr(trainer(lightning, tmp_path, **kwargs), run)(unused, datamodule=module)
    assert not any(unused.steps.values())


def test_a_trainer_takes_loaders_and_leaves_their_samplers_alone(
    tar: list[str], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """It asks validation for `batch_sampler`."""
    trained = model(lightning)
    with (
        GPULoader(tar, 8, None, preset=SMALL["preset"], output="dict") as train,
        GPULoader(tar, 8, None, output="dict", **SMALL["eval_loader"]) as val,
    ):
        trainer(lightning, tmp_path).fit(trained, train, val)
    assert [step.ids for step in trained.steps["train"]] == planned(tar, epoch=0) + planned(tar, epoch=1)
    assert not [warning for warning in recwarn if "shuffl" in str(warning.message)]


# --- resuming


@pytest.mark.slow(kept=1)
@pytest.mark.parametrize(
    ("package", "when", "kwargs"),
    [
        ("lightning.pytorch", EVERY_STEP, {}),
        ("pytorch_lightning", EVERY_STEP, {}),
        ("lightning.pytorch", EVERY_STEP, {"accumulate_grad_batches": 2, "limit_train_batches": 4}),
        ("lightning.pytorch", EVERY_STEP, {"reload_dataloaders_every_n_epochs": 1}),
        ("lightning.pytorch", EVERY_STEP, {**BY_STEPS, "limit_train_batches": 3}),
        ("lightning.pytorch", EPOCH_ENDS, {**BY_STEPS, "limit_train_batches": 3, "limit_val_batches": 0}),
        ("lightning.pytorch", AFTER_VALIDATION, {"val_check_interval": 2}),
    ],
)
def test_a_checkpoint_gives_exactly_the_rest(
    tar: list[str], tmp_path: Path, package: str, when: dict[str, Any], kwargs: dict[str, Any]
) -> None:
    """From each checkpoint of a run, another goes on with the steps that the first took from there."""
    package_of = pytest.importorskip(package)
    module = import_module(f"gpuloader.trainers.{package.partition('.')[0]}").GPULoaderDataModule
    asks = "reload_dataloaders_every_n_epochs" in kwargs

    def run(ckpt_path: Path | None = None, **more: Any) -> dict[str, list[Step]]:
        trained = model(package_of, asks_for_the_number_of_steps=asks)
        loaders = module(tar, tar, batch_size=8, **SMALL)
        trainer(package_of, tmp_path, **kwargs, **more).fit(trained, datamodule=loaders, ckpt_path=ckpt_path)
        return trained.steps

    whole = run(callbacks=[checkpoints(package_of, tmp_path, **when)])
    states = in_order(tmp_path)
    assert len(states) >= 2
    for done, path in states:
        rest = run(path)
        assert rest["train"] == whole["train"][done * kwargs.get("accumulate_grad_batches", 1) :]
        assert when is AFTER_VALIDATION or rest["val"] == whole["val"][len(whole["val"]) - len(rest["val"]) :]


@pytest.mark.parametrize("hook", ["training_step", "validation_step"])
def test_a_run_that_fails_goes_on_with_the_batch_that_was_not_trained(
    tar: list[str], tmp_path: Path, hook: str
) -> None:
    """The batch that was taken when training_step failed comes again, one that was trained on does not."""

    whole = fit(tar, tmp_path, val_check_interval=3).steps["train"]
    failing = model(lightning)
    original = getattr(failing, hook)

    def fail(*args: Any) -> Any:
        if failing.trainer.global_step == 3:
            raise ZeroDivisionError
        return original(*args)

    setattr(failing, hook, fail)

    class Saving(lightning.Callback):
        def on_exception(self, run: Any, *args: Any) -> None:
            run.save_checkpoint(tmp_path / "failed.ckpt")

    failing_run = trainer(lightning, tmp_path, val_check_interval=3, callbacks=[Saving()], enable_checkpointing=False)
    with pytest.raises(ZeroDivisionError):
        failing_run.fit(failing, datamodule=data(tar))
    assert failing.steps["train"] == whole[:3]
    assert fit(tar, tmp_path, tmp_path / "failed.ckpt", val_check_interval=3).steps["train"] == whole[3:]


def test_another_epoch_is_resumed_at_its_end_alone(tar: list[str], tmp_path: Path) -> None:
    middle, end = tmp_path / "middle", tmp_path / "end"
    saving = [checkpoints(lightning, middle, **EVERY_STEP), checkpoints(lightning, end, **EPOCH_ENDS)]
    fit(tar, tmp_path, callbacks=saving)

    def resume(path: Path, **changed: Any) -> Any:
        resumed = model(lightning)
        trainer(lightning, tmp_path).fit(resumed, datamodule=data(tar, **changed), ckpt_path=path)
        return resumed

    path = dict(in_order(middle))[3]
    with pytest.raises(StateError, match="the state has seed=0, this loader has seed=1"):
        resume(path, seed=1)
    with pytest.raises(StateError, match="batch_size x devices = 8; now it is 4: resume with 8"):
        resume(path, batch_size=4)
    path = dict(in_order(end))[5]
    assert len(resume(path, seed=1, batch_size=4).steps["train"]) == 10


@pytest.mark.parametrize("more", [{}, {"reload_dataloaders_every_n_epochs": 1}], ids=["one loader", "reloaded"])
@pytest.mark.slow(kept=1)
def test_a_pass_goes_on_in_the_next_short_epoch_whatever_the_length_of_epochs_was(
    tar: list[str], tmp_path: Path, more: dict[str, Any]
) -> None:
    """Three passes of 40 samples, in epochs of 16 and then of 8."""
    short = {"sampling": Sampling(steps_per_epoch=2)}

    def ids(path: Path | None, epochs: int, batch_size: int, **given: Any) -> list[int]:
        trained = model(lightning)
        loaders = data(tar, batch_size=batch_size, **short)
        trainer(lightning, tmp_path, max_epochs=epochs, **more, **given).fit(
            trained, datamodule=loaders, ckpt_path=path
        )
        return [sample for step in trained.steps["train"] for sample in step.ids]

    first = ids(None, 3, 8, callbacks=[checkpoints(lightning, tmp_path, **EPOCH_ENDS)])
    rest = ids(dict(in_order(tmp_path))[6], 12, 4)
    row = [sample for epoch in range(8) for step in planned(tar, epoch, **short) for sample in step]
    assert first + rest == row[: 3 * 16 + 9 * 8]


# --- devices and processes


def steps_on_two_devices(tar: list[str], folder: Path, strategy: str) -> list[dict[str, Any]]:
    """The steps of each device, with four samples in each."""
    command = [sys.executable, TESTS / "two_devices.py", Path(tar[0]).parent, folder, strategy]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS, ROOT)))}
    subprocess.run(command, env=environment, check=True, timeout=300)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_a_run_goes_on_between_the_two_last_steps_on_any_number_of_ranks(tar: list[str], tmp_path: Path) -> None:
    """40 samples on 3 x 13: one would be left for the last step, so the first takes 7 samples of each rank."""

    class OnARank(GPULoaderDataModule):
        """The data module as on one of several devices; the run itself is of one process."""

        def __init__(self, rank: int, ranks: int) -> None:
            options = {**SMALL, "shuffle": "none", "last_batch": "partial"}
            super().__init__(tar, tar, batch_size=39 // ranks, **options)
            self.world = World(rank, ranks)

        def _place(self) -> tuple[None, World]:
            return None, self.world

    def ids(rank: int, ranks: int, ckpt_path: Path | None = None, **given: Any) -> list[list[int]]:
        trained = model(lightning)
        loaders = OnARank(rank, ranks)
        trainer(lightning, tmp_path, max_epochs=1, **given).fit(trained, datamodule=loaders, ckpt_path=ckpt_path)
        return [step.ids for step in trained.steps["train"]]

    whole = [ids(0, 3, callbacks=[checkpoints(lightning, tmp_path, **EVERY_STEP)]), ids(1, 3), ids(2, 3)]
    assert [list(map(len, steps)) for steps in whole] == [[7, 6], [7, 6], [7, 7]]
    path = dict(in_order(tmp_path))[1]
    for ranks in (1, 3, 13):
        rest = [ids(rank, ranks, path) for rank in range(ranks)]
        assert {len(steps) for steps in rest} == {1}
        assert [sample for [step] in rest for sample in step] == list(range(21, 40))


@pytest.mark.slow(kept=1, of="whole programs")
def test_devices_of_one_data_rank_train_on_the_same_batches(tar: list[str], tmp_path: Path) -> None:
    first, second = steps_on_two_devices(tar, tmp_path, "model_parallel")
    assert first == second
    with GPULoader(tar, 4, None, preset=SMALL["preset"], output="dict") as loader:
        assert [ids for _, _, ids in first["train"]] == [batch["index"].tolist() for batch in loader]


@pytest.mark.slow(kept=0)
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "ddp_fork"])
def test_two_devices_share_the_batches_of_one_and_one_takes_over(tar: list[str], tmp_path: Path, strategy: str) -> None:
    whole = fit(tar, tmp_path, max_epochs=1).steps
    ranks = steps_on_two_devices(tar, tmp_path, strategy)
    for stage in ("train", "val"):
        steps = [first[2] + second[2] for first, second in zip(ranks[0][stage], ranks[1][stage], strict=True)]
        assert steps == [step.ids for step in whole[stage]]
    [(done, path)] = in_order(tmp_path)
    assert fit(tar, tmp_path, path, max_epochs=1).steps["train"] == whole["train"][done:]


# --- the loaders' life


class Open(lightning.Callback):
    """Notes the loaders, and can fail."""

    def __init__(self, fails: bool = False) -> None:
        self.loaders: list[GPULoader] = []
        self.fails = fails

    def on_validation_end(self, run: Any, *args: Any) -> None:
        self.loaders += [run.train_dataloader.loader, run.val_dataloaders.loader]
        if self.fails:
            raise ZeroDivisionError


@pytest.mark.parametrize(("kwargs", "loaders"), [({}, 2), ({"reload_dataloaders_every_n_epochs": 1}, 4)])
@pytest.mark.parametrize("fails", [False, True])
def test_loaders_are_closed_when_they_are_done_with(
    tar: list[str], tmp_path: Path, fails: bool, kwargs: dict[str, Any], loaders: int
) -> None:
    noted, module = Open(fails), data(tar)
    run = trainer(lightning, tmp_path, callbacks=[noted], enable_checkpointing=False, num_sanity_val_steps=0, **kwargs)
    try:
        run.fit(model(lightning), datamodule=module)
    except ZeroDivisionError:
        assert fails
    assert len(set(noted.loaders)) == (2 if fails else loaders)
    for loader in noted.loaders:
        with pytest.raises(LoaderError, match="is closed"):
            next(iter(loader))
    run.save_checkpoint(tmp_path / "afterwards.ckpt")
    assert torch.load(tmp_path / "afterwards.ckpt", weights_only=True)["GPULoaderDataModule"]["global_batch"] == 8


def test_a_model_can_hold_the_data_module(tar: list[str], tmp_path: Path) -> None:
    trained, held = model(lightning), data(tar)
    trained.train_dataloader, trained.val_dataloader = held.train_dataloader, held.val_dataloader
    trainer(lightning, tmp_path, num_sanity_val_steps=1).fit(trained)
    held.teardown("fit")
    assert [step.ids for step in trained.steps["train"]] == planned(tar, epoch=0) + planned(tar, epoch=1)
    assert len(trained.steps["val"]) == 2 * 5


# --- waiting


@pytest.mark.parametrize(
    ("package", "ours"),
    [
        ("lightning.pytorch", "gpuloader.trainers.lightning"),
        ("pytorch_lightning", "gpuloader.trainers.pytorch_lightning"),
    ],
)
def test_the_callback_logs_the_share_that_is_waited(tar: list[str], tmp_path: Path, package: str, ours: str) -> None:
    lightning, gpuloader = import_module(package), import_module(ours)
    logger = lightning.loggers.CSVLogger(tmp_path, version="")
    run = trainer(
        lightning,
        tmp_path,
        callbacks=[gpuloader.GPULoaderWaitMonitor(every_steps=2)],
        enable_checkpointing=False,
        logger=logger,
        log_every_n_steps=1,
        reload_dataloaders_every_n_epochs=1,
        limit_val_batches=0,
    )
    run.fit(model(lightning), datamodule=gpuloader.GPULoaderDataModule(tar, batch_size=8, **SMALL))
    rows = (tmp_path / "lightning_logs" / "metrics.csv").read_text().splitlines()
    header = rows[0].split(",")
    # Lightning writes a value at each step until there is another: two in each epoch of five steps and a new loader.
    shares = dict.fromkeys(float(row.split(",")[header.index("waiting_for_data")]) for row in rows[1:])
    assert len(shares) == 4
    assert all(0 < share <= 1 for share in shares)
    assert {name for name in header if name.startswith("gpuloader/")} == Stats().scalars().keys()


# --- the command line


@pytest.fixture(scope="session")  # before `demo`, which need not be drawn for tests that are skipped
def cli() -> ModuleType:
    pytest.importorskip("jsonargparse", reason="jsonargparse is not installed: pip install 'jsonargparse[signatures]'")
    return import_module("lightning.pytorch.cli")


def test_the_command_line_shows_the_loaders_arguments_and_checks_their_types(
    cli: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = cli.LightningArgumentParser()
    parser.add_lightning_class_args(GPULoaderDataModule, "data")
    shown = " ".join(parser.format_help().split())
    assert (
        "a `Decoder`: threads, prefetch, and how a GPU decodes. (type: Union[Decoder, Mapping[str, Any], null]" in shown
    )
    assert "--data.device_id" not in shown
    assert "Unvalidated" not in shown
    given = ["--data.train", "train-{0000..0001}.tar", "--data.batch_size", "8", "--data.fields", '["json"]']
    made = parser.instantiate(parser.parse_args(given)).data
    assert (made._shards["train"], made.batch_size, made._loader["fields"]) == ("train-{0000..0001}.tar", 8, ["json"])
    with pytest.raises(SystemExit):
        parser.parse_args([*given, "--data.seed", "first"])
    assert "data.seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "given", "taken"),
    [
        ("train", "shards/", "shards/"),
        ("train", '[{"tar": "a.tar", "weight": {0: 1, 2.5: 3}}]', [{"tar": "a.tar", "weight": {0: 1, 2.5: 3}}]),
        ("sampling", '{subset: ["a/1", "b/2"]}', Sampling(subset=["a/1", "b/2"])),
        ("sampling.weights", "balanced", Sampling(weights="balanced")),
        ("sampling", "{buckets: [[64, 64], [48, 96]]}", Sampling(buckets=[(64, 64), (48, 96)])),
        ("on_error", "skip", "skip"),
        ("preset", "{imagenet_train: {dtype: float16}}", {"imagenet_train": {"dtype": "float16"}}),
        ("shuffle", "math.factorial", math.factorial),
        ("output", "[index, image, label]", ("index", "image", "label")),
        ("output", "gpuloader.targets.to_detr", to_detr),
        ("sampling", "balanced", None),
        ("on_error", "leave", None),
    ],
)
def test_the_command_line_takes_what_the_loader_takes(cli: ModuleType, argument: str, given: str, taken: Any) -> None:
    parser = cli.LightningArgumentParser()
    parser.add_lightning_class_args(GPULoaderDataModule, "data")
    options = ["--data.batch_size", "8", f"--data.{argument}", given]
    if taken is None:
        with pytest.raises(SystemExit):
            parser.parse_args(options)
        return
    made = parser.instantiate(parser.parse_args(options)).data
    found = {"train": made._shards["train"], **made._loader}[argument.partition(".")[0]]
    if isinstance(taken, Sampling):  # it is one already, or a mapping of its values
        found, taken = asdict(found if isinstance(found, Sampling) else Sampling(**found)), asdict(taken)
    assert found == taken


def run_here(demo: Path, folder: Path, *command: str | Path) -> str:
    """Runs Python beside the demo's shards, and returns what it prints."""
    (folder / "shards").symlink_to(demo / "shards")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{EXAMPLES}"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown_on_the_page() -> list[str]:
    return re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("cli")
def test_the_example_learns_from_its_yaml(demo: Path, tmp_path: Path) -> None:
    csv = ["--trainer.logger", "lightning.pytorch.loggers.CSVLogger", "--trainer.logger.save_dir", tmp_path]
    given = ["fit", "--config", EXAMPLES / "lightning_cli.yaml", "--trainer.accelerator=cpu", "--trainer.devices=1"]
    printed = run_here(demo, tmp_path, EXAMPLES / "lightning_module.py", *given, *csv)
    header, *_, last = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    assert "accuracy" in header
    assert dict(zip(header.split(","), last.split(","), strict=True))["epoch"] == "4"
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step=100.ckpt"]
    check_that_it_learned(printed, shown_on_the_page()[1])


def test_the_page_shows_the_configuration() -> None:
    configuration = (EXAMPLES / "lightning_cli.yaml").read_text()
    assert f"```yaml\n{configuration}```" in PAGE.read_text()


@pytest.mark.usefixtures("cli")
def test_the_first_block_of_the_page_learns(demo: Path, tmp_path: Path) -> None:
    code = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)[0]
    check_that_it_learned(run_here(demo, tmp_path, "-c", code), shown_on_the_page()[0])
