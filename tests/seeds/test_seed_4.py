"""Collation and data modules: the code of the guide, and what its text says of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from seeds import Names, Page
from torch import nn

from gpuloader.compat import DataModuleProtocol, LanguageModelingDataCollator, UniversalDataModule, VisionDataCollator
from gpuloader.errors import ConfigError

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create",  # more workers than there are cores
    "ignore:Starting from v1.9.0",  # Lightning's, of the page's plain Trainer()
    "ignore:`max_epochs` was not set",
)

IMPORTS = {
    "utils.training.engine.data": "gpuloader.compat",
    "utils.training.task_spec": "gpuloader.compat",
    "utils.tokenization.data_collator": "gpuloader.compat",
    "utils.training.training_config": "gpuloader.compat",
    "utils.training.engine.checkpoint": "gpuloader.compat",
}
INSTALLED = find_spec("transformers") is not None
TEXT = {2, 9}  # blocks that need transformers
WORDS = ["[PAD]", "[UNK]", "gpus", "wait", "for", "data"]


def make_tokenizer() -> Any:  # noqa: ANN401
    if not INSTALLED:
        return object()
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def load_dataset(name: str, *_: str, split: str) -> Any:  # noqa: ANN401
    """A few rows of what Hugging Face has under that name, as its columns are called."""
    if name == "wikitext":
        columns = {"text": [" ".join(WORDS[2 : 3 + number % 4]) for number in range(40)]}
    else:
        columns = {"img": [np.full((8, 8, 3), number, np.uint8) for number in range(40)], "label": [*range(40)]}
    rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
    import datasets

    return datasets.Dataset.from_list(rows) if name == "wikitext" and hasattr(datasets, "Dataset") else rows


def tokens(names: Names) -> None:
    names["tokenizer"] = make_tokenizer()


def training(names: Names) -> None:
    model = names["model"] = nn.Linear(2, 2)
    names["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    names["scheduler"] = torch.optim.lr_scheduler.StepLR(names["optimizer"], 1)
    names["epoch"], names["step"] = 5, 3


def small(names: Names) -> None:
    names["train_loader"] = names["train_loader"].__class__([names["dataset"][0]] * 8, 4)


def of_images(names: Names) -> None:
    names["collator"] = VisionDataCollator()


def custom(names: Names) -> None:
    names["my_custom_collator"] = len


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    open_names = {2: tokens, 17: training, 20: custom, 22: small, 26: of_images}
    datasets = ModuleType("datasets")
    if find_spec("datasets"):
        import datasets
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        patch.setitem(sys.modules, "datasets", datasets)
        patch.setattr(datasets, "load_dataset", load_dataset, raising=False)
        with closing(Page(4, IMPORTS, open_names)) as page:
            yield page


def run(page: Page, number: int) -> Names:
    try:
        return page.run(number)
    except ConfigError as error:
        if number in TEXT and not INSTALLED and "needs the package transformers" in str(error):
            pytest.skip("transformers is not installed; scripts/test_integrations installs it")
        raise


# What the text says of a block, by its number.


def protocol(names: Names) -> None:
    assert isinstance(names["dm"], DataModuleProtocol)


def by_task(names: Names) -> None:
    assert isinstance(names["collator"], LanguageModelingDataCollator)
    assert isinstance(names["registry"].get_collator(task_spec=names["TaskSpec"].vision_tiny()), VisionDataCollator)


def by_name(names: Names) -> None:
    batch = names["collator"]([{"pixel_values": torch.full((3, 2, 2), 0.75)}])
    assert batch["pixel_values"].eq(0.5).all()


def registered(names: Names) -> None:
    assert vars(names["collator"]) == {"sample_rate": 22_050, "n_fft": 512}


def multimodal(names: Names) -> None:
    if not INSTALLED:
        return
    collate = names["registry"].get_collator(collator_name="multimodal", tokenizer=make_tokenizer())
    batch = collate([{"pixel_values": torch.rand(3, 4, 4), "input_ids": ids} for ids in ([2, 3, 4], [5])])
    assert batch["pixel_values"].shape == (2, 3, 4, 4)
    assert batch["labels"].tolist() == [[2, 3, 4], [5, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def made(names: Names) -> None:
    loader, gpu = names["loader"], torch.cuda.is_available()
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (32, 2, 2)
    assert (loader.pin_memory, loader.persistent_workers) == (gpu, True)


def automatic(names: Names) -> None:
    gpu = torch.cuda.is_available()
    assert (names["loader"].pin_memory, names["loader"].prefetch_factor) == ((True, 2) if gpu else (False, None))


def text(names: Names) -> None:
    assert names["input_ids"].shape == names["labels"].shape
    assert len(names["data_module"].train_dataloader().dataset) == 36


def vision(names: Names) -> None:
    module = names["data_module"]
    assert [len(loader.dataset) for loader in (module.train_dataloader(), module.val_dataloader())] == [800, 200]
    assert isinstance(names["train_loader"].collate_fn, VisionDataCollator)


def external(names: Names) -> None:
    module = names["data_module"]
    assert [len(loader.dataset) for loader in (module.train_dataloader(), module.val_dataloader())] == [40, 40]
    assert next(iter(module.val_dataloader()))["labels"].tolist() == [*range(40)]


def tensors(names: Names) -> None:
    module = names["data_module"]
    assert [len(loader.dataset) for loader in (module.train_dataloader(), module.val_dataloader())] == [400, 100]
    assert next(iter(module.train_dataloader())).shape == (32, 128)


def of_the_config(names: Names) -> None:
    assert (names["data_module"].seed, names["data_module"].batch_size) == (42, 32)


def saved(names: Names) -> None:
    state, module = names["state"], names["data_module"]
    assert Path(names["path"]).parent == Path("checkpoints")
    assert (state["epoch"], state["metrics"], module.seed) == (5, {"val_loss": 0.38}, 42)
    assert state["custom_state"]["epoch_step"] == 5 * len(names["train_loader"]) + 3


CHECKS: dict[int, Callable[[Names], None]] = {
    1: protocol,
    2: by_task,
    3: by_name,
    4: registered,
    5: multimodal,
    6: made,
    7: automatic,
    9: text,
    10: vision,
    11: external,
    12: tensors,
    16: of_the_config,
    17: saved,
}
LIGHTNING = 18  # its module has no training_step, which Lightning refuses


@pytest.mark.parametrize("number", sorted(set(range(1, 28)) - {LIGHTNING}))
def test_a_block_runs(page: Page, number: int) -> None:
    names = run(page, number)
    CHECKS.get(number, lambda _: None)(names)


def test_a_lightning_module_holds_the_data_module_and_lacks_its_step(page: Page) -> None:
    pytest.importorskip("pytorch_lightning", reason="not installed; scripts/test_integrations installs it")
    with pytest.raises(Exception, match="No `training_step\\(\\)` method defined"):
        page.run(LIGHTNING)


def test_the_universal_module_is_of_the_protocol(page: Page) -> None:
    assert isinstance(page.run(12)["data_module"], UniversalDataModule)
    assert isinstance(page.run(12)["data_module"], page.run(1)["DataModuleProtocol"])
