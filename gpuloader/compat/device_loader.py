"""torch's DataLoader with batches on the device before they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader


class DeviceLoader(DataLoader[Any]):
    """A DataLoader whose batches are on a device. On a GPU, the next batch is copied while the current one is used.

    The copies use their own stream, so they and the training step do not wait for each other. This needs
    `pin_memory=True`, the default on a GPU.

    Args:
        dataset: as torch's DataLoader takes it.
        device: of the batches; None uses the GPU if there is one.
        loader: arguments of torch's DataLoader.
    """

    def __init__(self, dataset: Any, device: str | torch.device | None = None, **loader: Any) -> None:  # noqa: ANN401
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        super().__init__(dataset, **{"pin_memory": self.device.type == "cuda", **loader})

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch's own iterator is not promised
        batches = super().__iter__()
        if self.device.type != "cuda":
            return (map_tensors(batch, lambda tensor: tensor.to(self.device)) for batch in batches)
        return self._copied_ahead(batches)

    def _copied_ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        copying = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

        def copy() -> tuple[Any, torch.cuda.Event] | None:
            for batch in batches:
                with torch.cuda.stream(copying):
                    copied = map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=True))
                    return copied, copying.record_event()
            return None

        def use(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(torch.cuda.current_stream(self.device))  # keeps its memory until this stream is done
            return tensor

        # copying   | copy 1 | copy 2 |        | copy 3 |
        # current            | step 1          | step 2          |
        # A step's stream waits for the copy of its own batch alone, by the event behind it.
        ahead = copy()
        while ahead is not None:
            (batch, copied), ahead = ahead, copy()
            torch.cuda.current_stream(self.device).wait_event(copied)
            yield map_tensors(batch, use)


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # noqa: ANN401
    """Changes each tensor of a batch; mappings become dictionaries, sequences keep their type."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {name: map_tensors(part, function) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [map_tensors(part, function) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
