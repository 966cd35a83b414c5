"""An iteration over a loader, of the kind that `iter` gives."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from typing_extensions import Self

from gpuloader.loading.one_thread import enter

Item_co = TypeVar("Item_co", covariant=True)


class Steps(Protocol[Item_co]):
    """What an iteration goes through: a GPULoader or a MixedLoader."""

    _inside: dict[str, int]

    def _next(self, epoch: Any) -> Item_co: ...  # noqa: ANN401 - an Iteration, of the loader's own kind


class Iteration(Generic[Item_co]):
    """One iteration over a loader. Not a generator: one ends where it raises, and the loop with it.

    Attributes:
        token: says whether it is the one that runs. The loader keeps that, as the iteration holds the loader.
    """

    def __init__(self, loader: Steps[Item_co]) -> None:
        self._loader: Steps[Item_co] | None = loader
        self.token = object()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item_co:
        loader = self._loader
        if loader is None:
            raise StopIteration
        enter(loader._inside)
        try:
            return loader._next(self)
        except StopIteration:
            self._loader = None
            raise
        finally:
            loader._inside = {}  # not by a call: an interrupt would come between the epoch's end and the loop's
