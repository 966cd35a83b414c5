"""`Quarantine`: the bad images that a loader has met."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gpuloader.errors import TooManyBadImagesError
from gpuloader.loading.run import Run

_log = logging.getLogger("gpuloader")


class Quarantine:
    """The bad images that a loader has replaced or dropped.

    Attributes:
        bad: sample id -> cause.
        suspects: samples that the reader tries one by one.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.bad: dict[int, str] = {}
        self.suspects: set[int] = set()

    def add(self, bad: Mapping[int, str], samples: int) -> None:
        """Adds the bad images of a batch, and logs each once.

        Args:
            bad: sample id -> cause.
            samples: the number of samples in the run.

        Raises:
            TooManyBadImagesError: there are more bad images than the run allows.
        """
        shards, max_share = self._run.shards, self._run.bad_images.max_share
        for sample, cause in bad.items():
            if sample not in self.bad:
                self.bad[sample] = cause
                done = "left out" if self._run.bad_images.skip else "replaced"
                _log.warning("bad image %s: %s, key %r at byte %d: %s", done, *shards.locate(sample), cause)
        if len(self.bad) > max(1, max_share * samples):
            sample, cause = next(reversed(self.bad.items()))
            where = shards.locate(sample)
            raise TooManyBadImagesError(
                f"{len(self.bad)} of {samples} images are bad, more than BadImages(max_share={max_share}) allows; "
                f"the last one is {where.key!r} in {where.shard}: {cause}. Repair the shards, or allow more"
            )
