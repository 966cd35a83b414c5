"""Saves and loads checkpoints of a training: model, optimizer, scheduler and the position in the data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gpuloader.base.atomic_files import atomic_file
from gpuloader.errors import ConfigError, StateError


class CheckpointManager:
    """A folder of checkpoints, each written completely or not at all.

    Args:
        checkpoint_dir: the folder; it is made if it is missing.
    """

    def __init__(self, checkpoint_dir: str | Path) -> None:
        self.folder = Path(checkpoint_dir)

    def save(
        self,
        *,
        model: torch.nn.Module,
        optimizer: Any = None,  # noqa: ANN401 - whatever has a state_dict
        scheduler: Any = None,  # noqa: ANN401
        loader: Any = None,  # noqa: ANN401
        epoch: int = 0,
        metrics: Mapping[str, float] | None = None,
        custom_state: Mapping[str, Any] | None = None,
    ) -> Path:
        """Writes the states of the given parts; with `loader`, `load` resumes in the middle of its epoch.

        Args:
            loader: a `GPULoader`, a `MixedLoader`, or torchdata's StatefulDataLoader.
            custom_state: tensors and plain types.

        Raises:
            ConfigError: `loader` has no state.
        """
        if loader is not None and not hasattr(loader, "state_dict"):
            raise ConfigError(
                f"loader is a {type(loader).__name__} without state_dict: install torchdata (pip install "
                f"'gpuloader[data]'); then DataLoaderFactory and UniversalDataModule make loaders that have one"
            )
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
        states = {name: part.state_dict() for name, part in parts.items() if part is not None}
        others = {"epoch": epoch, "metrics": dict(metrics or {}), "custom_state": dict(custom_state or {})}
        self.folder.mkdir(parents=True, exist_ok=True)
        names = (path.stem.removeprefix("checkpoint_") for path in self.folder.glob("checkpoint_*.pt"))
        last = max((int(name) for name in names if name.isdecimal()), default=-1)  # others may be yours
        path = self.folder / f"checkpoint_{last + 1:06d}.pt"
        with atomic_file(path) as file:
            torch.save({**states, **others}, file)
        return path

    def load(self, path: str | Path, **parts: Any) -> dict[str, Any]:  # noqa: ANN401
        """Reads what `save` wrote: the states, `epoch`, `metrics` and `custom_state`.

        Args:
            path: the result of `save`.
            parts: the parts to restore, by the names that `save` uses, such as `model=`.

        Raises:
            StateError: the checkpoint has no state for one of the parts.
        """
        state = torch.load(path, map_location="cpu", weights_only=True)
        if missing := sorted(set(parts) - set(state)):
            raise StateError(f"{path} has no state of {', '.join(missing)}: it has {', '.join(state)}")
        for name, part in parts.items():
            part.load_state_dict(state[name])
        return state
