"""`TorchEpochs`: the epochs of a torch loader, for `MixedLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from gpuloader.errors import StateError, describe
from gpuloader.loading.iteration import Resumption
from gpuloader.loading.state import check_place


class TorchEpochs:
    """The epochs of a torch DataLoader, or of any object that has a length and can be looped over repeatedly.

    Attributes:
        loader: the torch loader. At the start of an epoch, `set_epoch` of the loader or of its sampler is called. Its
            generator is seeded from its own seed and the epoch, so epochs do not depend on earlier ones.
    """

    def __init__(self, loader: Any) -> None:  # noqa: ANN401
        self.loader = loader
        self._epoch = self._delivered = 0
        self._restored = False
        self._generator = getattr(loader, "generator", None)
        self._seed = 0 if self._generator is None else self._generator.initial_seed()

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self._restored = False
        for batch in self.loader:
            self._delivered += 1
            yield batch

    def seek(self, epoch: int) -> None:
        if self._restored:
            iter(self.loader)  # drops the rest of the restored epoch
        self._go_to(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        inside = 0 < self._delivered < len(self)  # otherwise the epoch and the seed are enough
        state = self.loader.state_dict() if inside and hasattr(self.loader, "state_dict") else None
        return {"epoch": self._epoch, "delivered": self._delivered, "state": state}

    def check_state(self, state: Any) -> Resumption:  # noqa: ANN401
        if not isinstance(state, Mapping) or not {"epoch", "delivered", "state"} <= set(state):
            raise StateError(f"this is not a state of a torch loader, as MixedLoader saves it: {describe(state)}")
        epoch, delivered = check_place(state, "delivered", lambda _: len(self))
        inside = 0 < delivered < len(self)
        if inside and state["state"] is None:
            raise StateError(
                f"it was left in the middle of an epoch, after batch {delivered}, and has no state_dict: use "
                f"torchdata's StatefulDataLoader, or resume from a state of an epoch's end"
            )
        return len(self), partial(self._go_to, epoch, delivered, state["state"] if inside else None)

    def close(self) -> None:
        """Does nothing, because torch's loaders end their workers themselves."""

    def _go_to(self, epoch: int, delivered: int, state: Mapping[str, Any] | None = None) -> None:
        self._epoch, self._delivered, self._restored = epoch, delivered, state is not None
        parts: list[Any] = [self.loader, getattr(self.loader, "sampler", None)]
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        if self._generator is not None:
            self._generator.manual_seed(self._seed + epoch)
        if state is not None:
            self.loader.load_state_dict(state)
