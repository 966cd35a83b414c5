"""`TorchEpochs`: the epochs of a torch loader, for `MixedLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuloader.errors import StateError, describe
from gpuloader.helpers.text import counted
from gpuloader.helpers.values import is_integer
from gpuloader.plan import EPOCHS


class TorchEpochs:
    """The epochs of torch's DataLoader, or of any object that has a length and can be looped over repeatedly.

    Attributes:
        loader: this loader. Its `set_epoch`, or that of its sampler, is called with the epoch that begins. Its
            generator is seeded by its own seed and the epoch, so that no epoch depends on earlier ones.
    """

    def __init__(self, loader: Any) -> None:  # noqa: ANN401
        self.loader = loader
        self._length = len(loader)
        self._epoch = self._delivered = 0
        self._restored = False
        self._generator = getattr(loader, "generator", None)
        self._seed = 0 if self._generator is None else self._generator.initial_seed()

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the rest of a restored epoch."""
        self._restored = False
        return self._count(iter(self.loader))

    def begin(self, epoch: int) -> Iterator[Any]:
        """Iterates over an epoch from its beginning."""
        if self._restored and self._delivered:
            iter(self.loader)  # drops the rest of the restored epoch
        self._set_epoch(epoch)
        self._delivered, self._restored = 0, False
        return self._count(iter(self.loader))

    def state_dict(self) -> dict[str, Any]:
        inside = 0 < self._delivered < len(self)  # otherwise the epoch and the seed are enough
        state = self.loader.state_dict() if inside and hasattr(self.loader, "state_dict") else None
        return {"epoch": self._epoch, "given": self._delivered, "state": state}

    def check_state(self, state: object) -> None:
        """Raises StateError if `load_state_dict` would not take this state."""
        if not isinstance(state, Mapping) or not {"epoch", "given", "state"} <= set(state):
            raise StateError(f"this is not a state of a torch loader, as MixedLoader saves it: {describe(state)}")
        for name in ("epoch", "given"):
            if not is_integer(state[name], 0, EPOCHS + 1):
                raise StateError(
                    f"the state's {name} is {describe(state[name])}: allowed is an integer in [0, {EPOCHS}]"
                )
        if state["state"] is None and 0 < state["given"] < len(self):
            batches = counted(state["given"], "batch", "batches")
            raise StateError(
                f"it was left in the middle of an epoch, after {batches}, and has no state_dict: use "
                f"torchdata's StatefulDataLoader, or resume from a state of an epoch's end"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._set_epoch(state["epoch"])
        self._delivered, self._restored = state["given"], state["state"] is not None
        if self._restored:
            self.loader.load_state_dict(state["state"])

    def close(self) -> None:
        """Does nothing: torch's loaders end their workers themselves."""

    def _set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        parts: list[Any] = [self.loader, getattr(self.loader, "sampler", None)]
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        if self._generator is not None:
            self._generator.manual_seed(self._seed + epoch)

    def _count(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._delivered += 1
            yield batch
