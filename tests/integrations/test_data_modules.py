"""`UniversalDataModule` in a Trainer of Lightning's, and held by a LightningModule.

Both packages come with scripts/test_integrations; elsewhere these tests skip.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gpuloader.compat import UniversalDataModule

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's, which has many

KINDS = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
NUMBERS = [torch.full((4,), float(number)) for number in range(24)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(KINDS[request.param], reason="not installed; scripts/test_integrations installs it")
    return request.param


def make_model(lightning: ModuleType, data: UniversalDataModule | None = None) -> Any:  # noqa: ANN401
    class Model(lightning.LightningModule):
        """Keeps the samples of each step, by their first number."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.steps: dict[str, list[list[float]]] = {"train": [], "val": []}
            if data is not None:
                self.train_dataloader, self.val_dataloader = data.train_dataloader, data.val_dataloader

        def training_step(self, batch: Any, _: int) -> torch.Tensor:  # noqa: ANN401
            self.steps["train"].append(batch[:, 0].tolist())
            return self.layer(batch).sum()

        def validation_step(self, batch: Any, _: int) -> None:  # noqa: ANN401
            self.steps["val"].append(batch[:, 0].tolist())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Model()


def fit(kind: str, folder: Path, data: Any, held: bool = False, ckpt_path: Path | None = None) -> Any:  # noqa: ANN401
    """The steps of two epochs, with a checkpoint behind the seventh step."""
    lightning = import_module(KINDS[kind])
    model = make_model(lightning, data if held else None)
    trainer = lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[lightning.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=7)],
    )
    loaders = () if held else (data.train_dataloader(), data.val_dataloader())
    trainer.fit(model, *loaders, ckpt_path=ckpt_path)
    return model.steps


def numbers() -> UniversalDataModule:
    return UniversalDataModule(NUMBERS, batch_size=4, val_split=0.25, num_workers=0)


@pytest.mark.parametrize("held", [False, True], ids=["in a Trainer", "held by a module"])
def test_epochs_and_the_rest_of_one(kind: str, tmp_path: Path, held: bool) -> None:
    steps = fit(kind, tmp_path, numbers(), held)
    first, second = steps["train"][:5], steps["train"][5:]
    val = [row for batch in steps["val"][:2] for row in batch]
    assert [len(batch) for batch in first] == [4, 4, 4, 4, 2]
    assert sorted(sum(first, val)) == sorted(sum(second, val)) == list(range(24))
    assert first != second
    assert steps["val"][:2] == steps["val"][2:]
    rest = fit(kind, tmp_path, numbers(), held, ckpt_path=tmp_path / "step=7.ckpt")
    assert rest["train"] == steps["train"][7:]
