"""The pages in tests/seeds: code as others published it, which runs here after its import lines were changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

PAGES = Path(__file__).resolve().parents[1] / "seeds"
BLOCK = re.compile(r"^## ([\d.]+)\n\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
IMPORTS = {"import turboloader": "import gpuloader.compat.turboloader as turboloader"}


def blocks_of(page: int) -> dict[str, str]:
    """The blocks of a page by their numbers, in its order, verbatim."""
    return dict(BLOCK.findall((PAGES / f"{page}.txt").read_text()))


def with_imports_changed(code: str) -> str:
    """The code with its import lines changed, and nothing else."""
    return "\n".join(IMPORTS.get(line, line) for line in code.split("\n"))


class TinyLinear(torch.nn.Linear):
    """A layer; one of hundred thousands of inputs takes their mean."""

    def __init__(self, in_features: int, out_features: int) -> None:
        self.takes_mean = in_features > 100_000
        super().__init__(1 if self.takes_mean else in_features, out_features)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.mean(1, keepdim=True) if self.takes_mean else inputs)


def tiny_net(num_classes: int = 1000) -> torch.nn.Module:
    """A net for images of any size."""
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), TinyLinear(3, num_classes))


@contextmanager
def on_a_small_machine(folder: Path) -> Iterator[None]:
    """In a folder, without CUDA, worker processes of torch's or large layers."""
    whole = torch.utils.data.DataLoader
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.nn, "Linear", TinyLinear)
        patch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
        patch.setattr(
            torch.utils.data, "DataLoader", lambda *args, **kwargs: whole(*args, **kwargs | {"num_workers": 0})
        )
        yield


class Page:
    """A page whose blocks run in its order, with the names that those before them left, each once."""

    def __init__(self, page: int, folder: Path, unable: set[str]) -> None:
        self.blocks = {number: code for number, code in blocks_of(page).items() if number not in unable}
        self.folder = folder
        self._names: dict[str, Any] = {"__name__": "page"}
        self._left: dict[str, tuple[dict[str, Any], str]] = {}

    def run(self, block: str, given: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], str]:
        """The names that a block left, and what it printed.

        Args:
            given: by block, the names that a page leaves open.
        """
        for number, code in self.blocks.items():
            if number not in self._left:
                self._names |= given.get(number, {})
                said = StringIO()
                with on_a_small_machine(self.folder), redirect_stdout(said):
                    exec(compile(with_imports_changed(code), number, "exec"), self._names)
                self._left[number] = dict(self._names), said.getvalue()
            if number == block:
                return self._left[number]
        raise KeyError(block)


def train_as_rank(block: str, rank: int, world_size: int, folder: Path, names: dict[str, Any]) -> None:
    """Calls a block's `train(rank, world_size)`, with gloo for NCCL and a CPU for the rank's GPU."""
    dist = torch.distributed
    begin, parallel = dist.init_process_group, torch.nn.parallel.DistributedDataParallel
    [code] = [code for number, code in blocks_of(int(block[0])).items() if number == block]
    with on_a_small_machine(folder), pytest.MonkeyPatch.context() as patch:
        meeting = f"file://{folder / 'meeting'}"
        patch.setattr(
            dist, "init_process_group", lambda **kw: begin(**kw | {"backend": "gloo", "init_method": meeting})
        )
        patch.setattr(torch.cuda, "set_device", lambda rank: None)
        for kind in (torch.Tensor, torch.nn.Module):
            patch.setattr(kind, "to", lambda self, device: self)
        patch.setattr(torch.nn.parallel, "DistributedDataParallel", lambda model, device_ids: parallel(model))
        exec(compile(with_imports_changed(code), block, "exec"), names)
        names["train"](rank, world_size)
