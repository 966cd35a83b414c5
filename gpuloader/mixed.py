"""`MixedLoader`: the batches of several loaders in one loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count, cycle, islice
from types import TracebackType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from gpuloader.errors import ConfigError, LoaderError, StateError
from gpuloader.loader import Batch, GPULoader
from gpuloader.plan import Draws, Stream

Strategy: TypeAlias = Literal["weighted", "round_robin", "sequential", "alternate"]
Stop: TypeAlias = Literal["first", "longest", "cycle"]

STATE_VERSION = 1
_PASSES = 1000
_AT_ONCE = 1024


class MixedLoader:
    """Goes through several loaders in one loop and gives `(name, batch)`.

    Whose turn it is at a step is a function of seed, epoch and step, so every rank has the same. To mix within a batch,
    give one loader several sources.

    Args:
        loaders: by name.
        strategy: "weighted" draws the loader of each step by `weights`; "round_robin" takes one after the other;
            "sequential" all batches of the first, then all of the second, and so on; "alternate" a whole epoch of one
            loader in each epoch, in turn.
        weights: by name, for "weighted".
        stop: when an epoch of "weighted" or "round_robin" ends: "first", when a loader whose turn it is has no batch
            left; "longest", when all are through, those that are being left out; "cycle", when all are through, those
            that are beginning again. A loader's epoch is the mixed one; with "cycle", 1,000 times that, and the pass.
        seed: of "weighted".

    Raises:
        ConfigError: loaders, strategy, weights or stop that cannot be meant.
    """

    def __init__(
        self,
        loaders: Mapping[str, GPULoader],
        strategy: Strategy = "round_robin",
        *,
        weights: Mapping[str, float] | None = None,
        stop: Stop = "first",
        seed: int = 0,
    ) -> None:
        if not loaders:
            raise ConfigError("loaders: found none, give at least one")
        for name, value, allowed in (("strategy", strategy, get_args(Strategy)), ("stop", stop, get_args(Stop))):
            if value not in allowed:
                raise ConfigError(f"{name}={value!r}: allowed are {', '.join(map(repr, allowed))}")
        self.loaders = dict(loaders)
        self._strategy = strategy
        self._stop = stop
        self._seed = seed
        self._weights = _checked(weights, self.loaders, strategy)
        self._epoch = 0
        self._next_epoch = 0
        self._step = 0
        self._resumed = False
        self._running: object | None = None

    def __len__(self) -> int:
        """The steps of the next epoch, or of a resumed one as if it were whole."""
        return sum(1 for _ in self._turns(self._next_epoch))

    def __iter__(self) -> Iterator[tuple[str, Batch]]:
        """Begins the next epoch, or goes on with the one that `load_state_dict` restored."""
        self._epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        self._step, self._resumed = self._step if self._resumed else 0, False
        self._running = token = object()
        return self._batches(token)

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next iteration runs; a restored one goes on where it was left."""
        if epoch != self._next_epoch:
            self._next_epoch, self._resumed = epoch, False

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, in plain JSON types, with the states of the loaders."""
        return {
            "version": STATE_VERSION,
            **self._identity(),
            "epoch": self._epoch,
            "step": self._step,
            "loaders": {name: loader.state_dict() for name, loader in self.loaders.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where the state was taken, at the same global batch sizes.

        Raises:
            StateError: it is of other loaders, or of another order of them.
        """
        mine = {"version": STATE_VERSION, **self._identity()}
        for name, value in mine.items():
            if state.get(name) != value:
                raise StateError(f"the state has {name}={state.get(name)!r}, this MixedLoader has {name}={value!r}")
        for name, loader in self.loaders.items():
            loader.load_state_dict(state["loaders"][name])
        self._epoch = self._next_epoch = state["epoch"]
        self._step, self._resumed, self._running = state["step"], True, None

    def close(self) -> None:
        """Closes the loaders."""
        for loader in self.loaders.values():
            loader.close()

    def __enter__(self) -> MixedLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _batches(self, token: object) -> Iterator[tuple[str, Batch]]:
        begun: dict[str, Iterator[Batch]] = {}
        for name, number in islice(self._turns(self._epoch), self._step, None):
            if self._running is not token:
                raise LoaderError("this iterator is over: a newer one was begun, or a state was loaded")
            loader = self.loaders[name]
            passes, index = divmod(number, len(loader))
            if index == 0:
                loader.set_epoch(self._epoch_of(passes))
            if index == 0 or name not in begun:  # in the middle after a resume: the loader was restored there
                begun[name] = iter(loader)
            batch = next(begun[name])
            self._step += 1
            yield name, batch

    def _epoch_of(self, passes: int) -> int:
        if self._strategy == "alternate":
            return self._epoch // len(self.loaders)
        return self._epoch * _PASSES + passes if self._stop == "cycle" else self._epoch

    def _turns(self, epoch: int) -> Iterator[tuple[str, int]]:
        """For each step of an epoch, whose turn it is, and how many batches it gave before in that epoch."""
        lengths = {name: len(loader) for name, loader in self.loaders.items()}
        names = list(lengths)
        if self._strategy == "alternate":
            names = [names[epoch % len(names)]]
        if self._strategy in ("sequential", "alternate"):
            yield from ((name, number) for name in names for number in range(lengths[name]))
            return
        given = dict.fromkeys(names, 0)
        for name in self._drawn(epoch) if self._strategy == "weighted" else cycle(names):
            exhausted = given[name] >= lengths[name]
            if exhausted and self._stop == "first":
                return
            if all(given[each] >= lengths[each] for each in names):
                return
            if not exhausted or self._stop == "cycle":
                yield name, given[name]
                given[name] += 1

    def _drawn(self, epoch: int) -> Iterator[str]:
        assert self._weights is not None
        names, weights = list(self._weights), np.array(list(self._weights.values()))
        bounds = np.cumsum(weights / weights.sum())
        for first in count(0, _AT_ONCE):
            uniform = Draws(self._seed, epoch, np.arange(first, first + _AT_ONCE)).uniform(Stream.SAMPLING, 1)[:, 0]
            yield from (names[place] for place in np.searchsorted(bounds[:-1], uniform, side="right"))

    def _identity(self) -> dict[str, Any]:
        return {
            "strategy": self._strategy,
            "stop": self._stop,
            "seed": self._seed,
            "weights": self._weights,
            "lengths": {name: len(loader) for name, loader in self.loaders.items()},
        }


def _checked(
    weights: Mapping[str, float] | None, loaders: Mapping[str, GPULoader], strategy: Strategy
) -> dict[str, float] | None:
    if strategy != "weighted":
        if weights is not None:
            raise ConfigError(f'weights={weights!r} are for the strategy "weighted", got {strategy!r}')
        return None
    if (
        weights is None
        or set(weights) != set(loaders)
        or not all(0 < weight < float("inf") for weight in weights.values())
    ):
        raise ConfigError(f"weights={weights!r}: allowed is a number above 0 for each of {', '.join(loaders)}")
    return {name: float(weights[name]) for name in loaders}
