"""`Decoder`: the settings of decoding."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from gpuloader.recipe.model import Flag, Integer, Share
from gpuloader.recipe.part import argument

ENGINES_THREADS = 8
"""The most threads beside a GPU's JPEG engines, which leave them little to decode."""


@argument
class Decoder:
    """The settings of decoding. They do not change the order of the samples.

    Attributes:
        num_threads: the number of decoding threads. None uses this process's share of the cores; at most 8 of them on a
            GPU whose engines decode all JPEGs.
        prefetch: the number of batches that are decoded ahead, 1 to 64; `prefetch` + 1 further batches are read ahead.
            Batches of large pictures are decoded in parts: at most 2 * `prefetch` parts are decoded ahead, and
            `prefetch` + 1 further parts are read. If the recipe's `oversampling` decodes on the CPU, `prefetch` parts
            are decoded ahead, but at least two.
        hw_load: the share of the JPEGs, in [0, 1], that a GPU's JPEG engines decode, if it has any. None uses 1.
            Between 0 and 1, pixels can differ by rounding, because the decoder of an image depends on its batch.
            Ignored on a CPU.
        hybrid_huffman_threshold: for JPEGs that no engine decodes: if the decoded region has more pixels than this, the
            GPU decodes a part of the Huffman codes. None uses DALI's default, 1,000,000. Ignored on a CPU.
        processes: the number of processes that run your code, if the recipe has an `Apply`. 0 runs it in threads, where
            it competes with the Python code of the training loop. None uses `num_threads`.
        region: whether the decoder decodes only the region that a crop needs, instead of the whole image. On a CPU the
            pixels are the same. None means True on a CPU and False on a GPU, where some versions of nvImageCodec fail
            on regions. It also means False for shards in which at least 9 of 10 images are seekable JPEGs: these are
            cut to the region before they are decoded.

    Example:
        >>> from gpuloader import Decoder
        >>> Decoder(num_threads=4).prefetch
        2
    """

    num_threads: Annotated[Integer, Field(ge=1, le=1024)] | None = None
    prefetch: Annotated[Integer, Field(ge=1, le=64)] = 2
    hw_load: Share | None = None
    hybrid_huffman_threshold: Annotated[Integer, Field(ge=0, lt=2**31)] | None = None
    region: Flag | None = None
    processes: Annotated[Integer, Field(ge=0, le=1024)] | None = None

    def on(self, device_id: int | None, cores: int, seekable: bool = False) -> Decoder:
        """Returns the settings for a device, with a value in place of each None.

        Args:
            device_id: a GPU's number, or None for the CPU.
            cores: this process's share of the cores, at least 1.
            seekable: whether images are cut to their regions before they are decoded.
        """
        on_cpu = device_id is None
        hw_load = 1.0 if self.hw_load is None and not on_cpu else self.hw_load
        num_threads = self.num_threads or (min(cores, ENGINES_THREADS) if not on_cpu and hw_load == 1 else cores)
        return replace(
            self,
            num_threads=num_threads,
            processes=num_threads if self.processes is None else self.processes,
            hw_load=hw_load,
            region=on_cpu and not seekable if self.region is None else self.region,
        )

    @property
    def graph_options(self) -> dict[str, Any]:
        """The arguments of `gpuloader.pipelines.recipe_pipeline` that follow from these settings."""
        options = {"hw_decoder_load": self.hw_load, "hybrid_huffman_threshold": self.hybrid_huffman_threshold}
        given = {name: value for name, value in options.items() if value is not None}
        return {"num_threads": self.num_threads or 1, "decoder_options": given, "region": self.region is not False}
