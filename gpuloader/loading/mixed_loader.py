"""`MixedLoader`: the batches of several loaders in one loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, cycle, islice
from typing import Any, Generic, Literal, TypeAlias, get_args

import numpy as np

from gpuloader.errors import ConfigError, LoaderError, StateError, describe
from gpuloader.loading.agreement import agree
from gpuloader.loading.class_lists import check_same_classes
from gpuloader.loading.delivery import B_co
from gpuloader.loading.iteration import CloseableMixin, Epochs, EpochsMixin, Iteration, Progress, Resumption
from gpuloader.loading.loader import GPULoader
from gpuloader.loading.selection import is_weight
from gpuloader.loading.state import check_place, is_same
from gpuloader.loading.torch_epochs import TorchEpochs
from gpuloader.loading.world import World
from gpuloader.plan import EPOCHS, Cursor, Draws, Stream, check_seed

Strategy: TypeAlias = Literal["weighted", "round_robin", "sequential", "alternate"]
Stop: TypeAlias = Literal["first", "longest", "cycle"]

STATE_VERSION = 1
_PASSES = 1000
_AT_ONCE = 1024


class MixedLoader(EpochsMixin, CloseableMixin, Generic[B_co]):
    """A loader that takes each batch from one of several loaders, and yields `(name, batch)`.

    The loader of a step depends only on the seed, the epoch and the step, so it is the same on every rank. To mix
    samples within a batch, use one loader with several sources instead.

    Args:
        loaders: the loaders by name, each a `GPULoader` or a torch loader. The mixed loader chooses their epochs. A
            torch loader needs a seeded `generator` for the same order in each run, and `state_dict` (as in torchdata's
            StatefulDataLoader) to resume in the middle of an epoch.
        strategy: "weighted" chooses the loader of each step at random, by `weights`. "round_robin" takes one batch of
            each loader in turn. "sequential" takes all batches of the first loader, then all of the second, and so on.
            "alternate" takes an epoch of one loader in each epoch, in turn.
        weights: a weight for each name, for "weighted".
        stop: when an epoch of "weighted" or "round_robin" ends. "first": at the turn of a loader that has no batch
            left. "longest": when no loader has a batch left; until then, finished loaders are skipped. "cycle": when
            each loader has finished at least once; until then, finished loaders start again. A loader runs the epoch of
            the mixed loader; with "cycle", it runs epoch 1,000 * epoch + the number of its restarts.
        seed: for "weighted", an integer in [0, 2**64).
        same_classes: False allows `GPULoader`s with different classes, for a model with one head for each loader.

    Raises:
        ConfigError: an argument is invalid, or arguments differ between ranks.
        DataError: the classes of two loaders differ.

    Example:
        >>> from gpuloader import GPULoader, MixedLoader
        >>> photos = GPULoader("shards/train-0000.tar", 8, "cpu")
        >>> drawings = GPULoader("shards/train-0001.tar", 4, "cpu")
        >>> mixed = MixedLoader({"photos": photos, "drawings": drawings}, stop="longest")
        >>> len(mixed) == len(photos) + len(drawings)
        True
    """

    def __init__(
        self,
        loaders: Mapping[str, Iterable[B_co]],
        strategy: Strategy = "round_robin",
        *,
        weights: Mapping[str, float] | None = None,
        stop: Stop = "first",
        seed: int = 0,
        same_classes: bool = True,
    ) -> None:
        if not isinstance(loaders, Mapping) or not loaders or not all(isinstance(name, str) for name in loaders):
            raise ConfigError(f"loaders={loaders!r}: allowed are loaders by name, such as {{'photos': GPULoader(...)}}")
        for name, loader in loaders.items():
            if not (hasattr(loader, "__iter__") and hasattr(loader, "__len__")):
                kind = f"{type(loader).__module__}.{type(loader).__name__}"
                raise ConfigError(
                    f"loaders: {name!r} is a {kind}: allowed are a GPULoader, and a torch loader that has a length"
                )
        given = {"strategy": strategy, "stop": stop, "same_classes": same_classes}
        for (name, value), allowed in zip(given.items(), (get_args(Strategy), get_args(Stop), (True, False))):
            if value not in allowed:
                raise ConfigError(f"{name}={value!r}: allowed are {', '.join(map(repr, allowed))}")
        if stop != "first" and strategy in ("sequential", "alternate"):
            raise ConfigError(f'stop={stop!r}: it is for the strategies "weighted" and "round_robin", got {strategy!r}')
        self.loaders = dict(loaders)
        self._strategy = strategy
        self._stop = stop
        self._seed = check_seed(seed)
        self._weights = _check_weights(weights, self.loaders, strategy)
        self._epochs: dict[str, Epochs[B_co]] = {
            name: loader if isinstance(loader, GPULoader) else TorchEpochs(loader) for name, loader in loaders.items()
        }
        self._progress = Progress()  # its cursors count batches
        ours = {name: loader for name, loader in self._epochs.items() if isinstance(loader, GPULoader)}
        worlds = [loader.world for loader in ours.values()]
        agree(worlds[0] if worlds else World.detect(), self._identity(self._lengths))
        if same_classes:
            check_same_classes(ours, further="; for a model with one head for each loader, use same_classes=False")

    def __len__(self) -> int:
        """Returns the number of steps in the next epoch, or in all of a resumed one; with "weighted", epochs differ."""
        return self._steps(self._progress.start.epoch, self._lengths)

    def __iter__(self) -> Iterator[tuple[str, B_co]]:
        """Iterates over the next epoch, or over the rest of the epoch that `load_state_dict` restored.

        The epoch begins when you ask for its first batch.
        """
        return _MixedEpoch(self._progress, self._next)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the run in plain JSON types, with the states of the loaders."""
        cursor = self._progress.cursor
        begins = {} if cursor.delivered else {"delivered": 0}  # then each loader starts an epoch
        return {
            **self._identity(self._lengths),
            "epoch": cursor.epoch,
            "step": cursor.delivered,
            "loaders": {name: {**loader.state_dict(), **begins} for name, loader in self._epochs.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state: the next iteration continues where the state was taken.

        The global batch sizes must be the same. Shards may have been appended to the data of a loader only if the state
        is from the beginning of an epoch.

        Args:
            state: the result of `state_dict`.

        Raises:
            StateError: the state has other loaders, another order of loaders, or another strategy, weights, stop or
                seed.
        """
        if not isinstance(state, Mapping):
            raise StateError(
                f"this is not a state of a MixedLoader but {describe(state)}: pass what its state_dict() returned"
            )
        if missing := sorted({*self._identity({}), "epoch", "step", "loaders"} - set(state)):
            raise StateError(f"this is not a state of a MixedLoader: it lacks {', '.join(missing)}")
        saved = state["loaders"]
        if not isinstance(saved, Mapping) or set(saved) != set(self._epochs):
            raise _other("loaders", list(saved) if isinstance(saved, Mapping) else saved, list(self._epochs))
        checked = {name: self._check(name, saved[name]) for name in self._epochs}
        lengths = {name: steps for name, (steps, _) in checked.items()}
        for name, value in self._identity(lengths).items():
            what = _names_in if name == "lengths" and is_same(state["step"], 0) else lambda each: each
            if not is_same(what(state[name]), what(value)):
                raise _other(name, state[name], value)
        turn = Cursor(*check_place(state, "step", lambda epoch: self._steps(epoch, lengths)))
        self._progress.restore(Cursor(self._progress.start.epoch))  # in case a loader fails
        for _, take in checked.values():
            take()
        self._progress.restore(turn)

    def close(self) -> None:
        """Closes the loaders."""
        for loader in self._epochs.values():
            loader.close()

    def _next(self, epoch: _MixedEpoch[B_co]) -> tuple[str, B_co] | None:
        """Returns the next item of the running epoch; None at its end."""
        progress = self._progress
        progress.begin(epoch)
        cursor = progress.cursor
        lengths = self._lengths
        epoch.turns = epoch.turns or islice(self._turns(cursor.epoch, lengths), cursor.delivered, None)
        epoch.turn = epoch.turn or next(epoch.turns, None)  # a turn that raised an error is repeated
        if epoch.turn is None:
            progress.cursor, progress.running = progress.start, None
            return None
        name, number = epoch.turn
        passes, index = divmod(number, lengths[name])
        if index == 0:
            self._epochs[name].seek(self._epoch_of(cursor.epoch, passes))
        if index == 0 or name not in epoch.epochs:  # after a resume
            epoch.epochs[name] = iter(self._epochs[name])
        batch = next(epoch.epochs[name], None)
        if batch is None:
            raise LoaderError(f"the loader {name!r} ended before its turn: was it used outside this loop? Begin again")
        progress.cursor = Cursor(cursor.epoch, cursor.delivered + 1)
        epoch.turn = None
        return name, batch

    def _check(self, name: str, state: Any) -> Resumption:  # noqa: ANN401
        try:
            return self._epochs[name].check_state(state)
        except StateError as error:
            raise StateError(f"loader {name!r}: {error}") from None

    def _epoch_of(self, epoch: int, passes: int) -> int:
        """Returns the epoch that a loader runs in an epoch of the mixed loader, after so many restarts."""
        if self._strategy == "alternate":
            return epoch // len(self.loaders)
        return (epoch * _PASSES + passes) % EPOCHS if self._stop == "cycle" else epoch

    @property
    def _lengths(self) -> dict[str, int]:
        """The number of steps in an epoch of each loader, by name."""
        return {name: len(loader) for name, loader in self._epochs.items()}

    def _steps(self, epoch: int, lengths: Mapping[str, int]) -> int:
        return sum(1 for _ in self._turns(epoch, lengths))

    def _turns(self, epoch: int, lengths: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """Yields for each step the name of the loader, and how many batches it delivered before in this epoch."""
        names = list(lengths)
        if self._strategy == "alternate":
            names = [names[epoch % len(names)]]
        if self._strategy in ("sequential", "alternate"):
            yield from ((name, number) for name in names for number in range(lengths[name]))
            return
        delivered = dict.fromkeys(names, 0)
        for name in self._draw_names(epoch) if self._strategy == "weighted" else cycle(names):
            exhausted = delivered[name] >= lengths[name]
            if exhausted and self._stop == "first":
                return
            if all(delivered[each] >= lengths[each] for each in names):
                return
            if not exhausted or self._stop == "cycle":
                yield name, delivered[name]
                delivered[name] += 1

    def _draw_names(self, epoch: int) -> Iterator[str]:
        assert self._weights is not None
        names, weights = list(self._weights), np.array(list(self._weights.values()))
        bounds = np.cumsum(weights / weights.sum())
        for first in count(0, _AT_ONCE):
            steps = Draws(self._seed, epoch, np.arange(first, first + _AT_ONCE))
            uniform = steps.of(Stream.SAMPLING, occurrence=1)(1)[:, 0]  # independent of the samples' random numbers
            yield from (names[number] for number in np.searchsorted(bounds[:-1], uniform, side="right"))

    def _identity(self, lengths: Mapping[str, int]) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "strategy": self._strategy,
            "stop": self._stop,
            "seed": self._seed,
            "weights": self._weights,
            "lengths": [[name, length] for name, length in lengths.items()],  # a list, to keep the order
        }


class _MixedEpoch(Iteration[tuple[str, B_co]]):
    """An iteration over a MixedLoader.

    Attributes:
        turns: the remaining turns, (name, number); None before the first.
        turn: the next turn, if it is known.
        epochs: the running epochs of the loaders, by name.
    """

    turns: Iterator[tuple[str, int]] | None = None
    turn: tuple[str, int] | None = None

    def __init__(self, progress: Progress, step: Callable[[Any], tuple[str, B_co] | None]) -> None:
        super().__init__(progress, step)
        self.epochs: dict[str, Iterator[B_co]] = {}


def _names_in(lengths: object) -> object:
    """Returns the names of the loaders in a state's lengths, in their order."""
    return [each[:1] if isinstance(each, list) else each for each in lengths] if isinstance(lengths, list) else lengths


def _other(name: str, saved: object, mine: object) -> StateError:
    return StateError(
        f"the state has {name}={describe(saved)}, this MixedLoader has {name}={mine!r}: make it as it was when the "
        f"state was saved, or start again without the state"
    )


def _check_weights(
    weights: Mapping[str, float] | None, loaders: Mapping[str, Any], strategy: Strategy
) -> dict[str, float] | None:
    if strategy != "weighted":
        if weights is not None:
            raise ConfigError(f'weights={weights!r}: they are for the strategy "weighted", got {strategy!r}')
        return None
    if not isinstance(weights, Mapping) or set(weights) != set(loaders) or not all(map(is_weight, weights.values())):
        raise ConfigError(f"weights={weights!r}: allowed is a number above 0 for each of {', '.join(loaders)}")
    return {name: float(weights[name]) for name in loaders}
