"""What parsers do with mutants: of tars, index files, states, recipes, arrays, JSON and annotations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from bad_images import GOOD
from drawn_numbers import all_numbers_of
from forging import parts_of, sealed
from making import write_shard

from fuzzing.annotations import takes_annotations
from fuzzing.jobs import Job, Result
from gpuloader import ConfigError, DataError, GPULoader, PresetError, StateError
from gpuloader.collators import REFUSALS, Collator, as_arrays, as_json, padded, stacked
from gpuloader.images.arrays import array_gate
from gpuloader.images.limits import Refused
from gpuloader.plan import Draws
from gpuloader.recipe import load_preset
from gpuloader.shards import Index, open_index
from gpuloader.shards.scan import scan_bytes

Examine: TypeAlias = Callable[[bytes], bool]
"""Whether a parser takes the data, and all that is asked of it then works; it raises what is no error of ours."""

_COLLATORS = (as_arrays, stacked, padded)
_SIZES = np.array([[1, 70], [64, 48], [3000, 40]])


class Parsers:
    """Tries the mutants of data.

    Args:
        folder: an empty folder to write into.
    """

    def __init__(self, folder: Path) -> None:
        self._recipe = folder / "recipe.yaml"
        self._loader = loader_of(folder)
        self._takes: dict[str, Examine] = {
            "tar": _refusing(DataError, _takes_tar),
            "index": _refusing(DataError, _takes_index),
            "state": _refusing(StateError, self._takes_state),
            "recipe": _refusing(PresetError, self._takes_recipe),
            "npy": _takes_array,
            "json": _refusing(REFUSALS, _takes_json),
            "annotations": takes_annotations,
        }

    def examine(self, job: Job, mutants: Mapping[int, bytes]) -> Result:
        """Parses each mutant, and uses what comes out."""
        accepted = sum(map(self._takes[job.kind], mutants.values()))
        return Result(Counter({"refused": len(mutants) - accepted, "accepted": accepted}))

    def _takes_state(self, data: bytes) -> bool:
        try:
            state: Any = json.loads(data)
        except (ValueError, RecursionError):  # as any program finds that reads it
            return False
        self._loader.load_state_dict(state)
        self._loader.state_dict()
        return True

    def _takes_recipe(self, data: bytes) -> bool:
        self._recipe.write_bytes(data)
        preset = load_preset(self._recipe)
        try:
            drawn = preset.draw(Draws(1, 2, np.arange(3)), _SIZES)
        except ConfigError:  # a blur that does not fit into the image
            return False
        assert all(np.isfinite(array).all() for array in all_numbers_of(drawn)), "a drawn number is not finite"
        return True


def _refusing(errors: type[Exception] | tuple[type[Exception], ...], takes: Examine) -> Examine:
    def examine(data: bytes) -> bool:
        try:
            return takes(data)
        except errors:
            return False

    return examine


def loader_of(folder: Path) -> GPULoader:
    """A loader of two samples."""
    shard = write_shard(folder / "a.tar", [{"__key__": key, "jpg": GOOD} for key in "ab"])
    open_index(shard)  # without a progress bar
    return GPULoader(shard, 2, None, preset="imagenet_eval", label_from=None)


def scanned(tar: bytes) -> Index:
    """The index of a tar in memory."""
    return scan_bytes(lambda size, place: tar[place : place + size], len(tar), 0, "a.tar")


def _takes_tar(data: bytes) -> bool:
    _use(scanned(data), len(data))
    return True


def _takes_index(data: bytes) -> bool:
    index = Index.parse(sealed(parts_of(data)), "a.gpuidx")
    _use(index, index.shard_bytes.item(0))
    return True


def _use(index: Index, size_bytes: int) -> None:
    """All that the library asks an index; it may not reach outside the shard."""
    keys = list(index.each_key())
    assert [index.key(row) for row in range(len(index))] == keys, "keys differ"
    places = [index.component(row, extension) for row in range(len(index)) for extension in index.extensions]
    places += zip(index.column("image_offset").tolist(), index.column("image_size").tolist(), strict=True)
    assert all(place is None or 0 <= place[0] <= sum(place) <= size_bytes for place in places), "outside the shard"
    assert len(index.image_extensions()) == len(keys), "other lengths"
    index.digest()
    Index.parse(index.to_bytes(), "a.gpuidx")


def _takes_array(data: bytes) -> bool:
    """As an image, and as a field by each collator."""
    with suppress(Refused):
        array_gate(np.frombuffer(data, np.uint8))
    return any([_refusing(REFUSALS, partial(_collates, collate))(data) for collate in _COLLATORS])  # noqa: C419 - all


def _collates(collate: Collator, data: bytes) -> bool:
    collate([data, data])
    return True


def _takes_json(data: bytes) -> bool:
    as_json([data])
    return True
