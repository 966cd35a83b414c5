"""The code of `GPULoaderWaitMonitor` for both of Lightning's packages: `lightning` and `pytorch_lightning`."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpuloader.errors import ConfigError
from gpuloader.loading.loader import GPULoader
from gpuloader.loading.monitor import WaitMonitor


class WaitLogging:
    """The hooks of a Lightning callback that logs how long training waits for data, to each logger of the Trainer.

    It logs the share of the time, `waiting_for_data`, in [0, 1], and the numbers of `Stats.scalars`, such as
    `gpuloader/samples`. It warns once with the likely cause; see `WaitMonitor`.
    Training must read from a `GPULoader`, through the data module or as the Trainer's `train_dataloaders`.

    Args:
        every_steps: how many batches are measured together; at least 1.
        warn_above: the share above which a warning is logged.

    Raises:
        ConfigError: at the start of training, if training reads from something else, or if `every_steps` is below 1.
    """

    def __init__(self, every_steps: int = 50, warn_above: float = 0.1) -> None:
        super().__init__()
        self._every_steps = every_steps
        self._warn_above = warn_above
        self._monitor: WaitMonitor | None = None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401
        """Finds the loader of the epoch, because the Trainer may have made a new one."""
        batches = trainer.train_dataloader
        loader = getattr(batches, "loader", batches)
        if not isinstance(loader, GPULoader):
            raise ConfigError(
                f"{type(self).__name__}: training reads from a {type(loader).__name__}; allowed is a GPULoader: train "
                f"with datamodule=GPULoaderDataModule(...) or train_dataloaders=GPULoader(...), or leave this callback "
                f"out"
            )
        if self._monitor is None or self._monitor.loader is not loader:
            log = partial(_log, pl_module, loader)
            self._monitor = WaitMonitor(loader, self._every_steps, log, self._warn_above)

    def on_train_batch_end(self, *_: Any) -> None:  # noqa: ANN401
        if self._monitor is not None:
            self._monitor.step()

    def teardown(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        self._monitor = None


def _log(pl_module: Any, loader: GPULoader[Any], share: float) -> None:  # noqa: ANN401
    pl_module.log_dict({"waiting_for_data": share, **loader.stats().scalars()})
