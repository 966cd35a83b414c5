"""The pages in tests/seeds: code as others published it, which runs here after its import lines were changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

PAGES = Path(__file__).resolve().parents[1] / "seeds"
BLOCK = re.compile(r"^## \d\.(\d+)\n\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TURBOLOADER = {"turboloader": "gpuloader.compat.turboloader"}

Names = dict[str, Any]


def blocks_of(page: int) -> dict[int, str]:
    """The blocks of a page by their numbers, in its order, verbatim."""
    return {int(number): code for number, code in BLOCK.findall((PAGES / f"{page}.txt").read_text())}


def with_imports_changed(code: str, imports: Mapping[str, str]) -> str:
    """The code with its import lines changed, and nothing else; `imports` has our modules by theirs."""
    for theirs, ours in imports.items():
        code = re.sub(rf"^( *from ){re.escape(theirs)} import", rf"\1{ours} import", code, flags=re.MULTILINE)
        code = re.sub(rf"^import {re.escape(theirs)}$", f"import {ours} as {theirs}", code, flags=re.MULTILINE)
    return code


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


class Left(NamedTuple):
    """What a block left: the names, what it printed, and the error that ended it."""

    names: Names
    printed: str
    error: Exception | None


class Page:
    """A page whose blocks run in its order, each once, with the names that those before them left.

    Args:
        page: its number.
        imports: our modules by theirs.
        before: sets names that the page leaves open, by the number of the block that needs them first.
        around: what a block runs in.

    Attributes:
        blocks: the code by number.
    """

    def __init__(
        self,
        page: int,
        imports: Mapping[str, str],
        before: Mapping[int, Callable[[Names], object]],
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.blocks = blocks_of(page)
        self._imports, self._before, self._around = imports, before, around
        self._names: Names = {"__name__": "page"}
        self._left: dict[int, Left] = {}

    def run(self, number: int) -> Names:
        """The names after a block. Raises what ended that block, not those before it."""
        for each in self.blocks:
            if each <= number and each not in self._left:
                self._left[each] = self._run(each)
        if error := self._left[number].error:
            raise error
        return self._left[number].names

    def printed(self, number: int) -> str:
        """What a block printed."""
        self.run(number)
        return self._left[number].printed

    def close(self) -> None:
        """Lets the names go one by one: of a cycle, torch's loaders end after 5 s for each of their workers."""
        for names in (self._names, *(left.names for left in self._left.values())):
            names.clear()
        self._left.clear()

    def _run(self, number: int) -> Left:
        self._before.get(number, lambda _: None)(self._names)
        said, error = StringIO(), None
        try:
            code = compile(with_imports_changed(self.blocks[number], self._imports), f"block {number}", "exec", 0, True)
            with self._around(), redirect_stdout(said):
                exec(code, self._names)
        except Exception as raised:  # noqa: BLE001 - of any kind: the test of that block raises it
            error = raised
        return Left(dict(self._names), said.getvalue(), error)


_kept: list[Any] = []
"""Models that are never freed: in torch 2.13, freeing one joins a thread of gloo that may wait for the GIL."""


def train_as_rank(page: int, number: int, rank: int, world_size: int, folder: Path, names: Names) -> None:
    """Calls a block's `train(rank, world_size)`, with gloo for NCCL and a CPU for the rank's GPU."""
    dist = torch.distributed
    begin, parallel = dist.init_process_group, torch.nn.parallel.DistributedDataParallel
    code = with_imports_changed(blocks_of(page)[number], TURBOLOADER)
    with on_a_small_machine(folder), pytest.MonkeyPatch.context() as patch:
        meeting = f"file://{folder / 'meeting'}"
        patch.setattr(
            dist, "init_process_group", lambda **kw: begin(**kw | {"backend": "gloo", "init_method": meeting})
        )
        patch.setattr(torch.cuda, "set_device", lambda rank: None)
        for kind in (torch.Tensor, torch.nn.Module):
            patch.setattr(kind, "to", lambda self, device, **_: self)
        patch.setattr(
            torch.nn.parallel,
            "DistributedDataParallel",
            lambda model, device_ids: _kept.append(parallel(model)) or _kept[-1],
        )
        exec(code, names)
        names["train"](rank, world_size)
