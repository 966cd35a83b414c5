"""Selects samples by the `subset`, `require` and `leave_out` of a `Sampling`."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.regular_file import read_regular
from gpuloader.base.text import counted, did_you_mean
from gpuloader.errors import ConfigError, describe
from gpuloader.loading.options import Sampling, SubsetOf
from gpuloader.plan import SampleSubset
from gpuloader.shards import ShardSet, every, read_quarantine, shared, user_path

KEY_FILE_SUFFIX = ".txt"
"""The suffix of a string that names a file of keys. As a pattern it matches no key: a key's last part has no dot."""
_QUARANTINE_SUFFIX = ".jsonl"  # of a path in `leave_out`; as a pattern it would match no key, either
MOST_CHARACTERS = 200  # of a name in an error
_MOST_EXTENSIONS = 20  # that an error lists
_MOST_KEY_FILE_BYTES = 1 << 32  # a hundred million keys take some 1.5 GB


def choose(shards: ShardSet, sampling: Sampling) -> SampleSubset:
    """Selects the samples by `subset` and `require`.

    Raises:
        ConfigError: one of them is invalid, or no sample is selected.
    """
    lacking = [np.empty(0, np.int64)]
    for extension in sampling.require:
        check_exists("require", extension, shards)
        lacking.append(shards.index.rows_without(extension))
    left_out = shared(np.unique(np.concatenate(lacking)))
    chosen = SampleSubset(len(shards) - len(left_out), left_out=left_out)
    if sampling.subset is not None:
        ids = ids_of("subset", sampling.subset, shards)
        ids = shared(ids[chosen.includes(ids)])
        chosen = SampleSubset(len(ids), ids, shared(np.sort(ids)))
    if not chosen.size:
        among = "" if sampling.subset is None else " of the subset"
        raise ConfigError(f"require: no sample{among} has all of {_dotted(sampling.require)}")
    return chosen


def find_left_out(shards: ShardSet, sampling: Sampling) -> NDArray[np.int64]:
    """Returns the sample ids of `leave_out`, (n,), sorted.

    Raises:
        ConfigError, DataError: it is invalid, or names what the data lacks.
    """
    given = sampling.leave_out
    if given is None:
        return np.empty(0, np.int64)
    if isinstance(given, (str, os.PathLike)) and os.fsdecode(given).endswith(_QUARANTINE_SUFFIX):
        return np.array(sorted(read_quarantine(user_path(given), shards)), np.int64)
    return np.unique(ids_of("leave_out", given, shards, all_copies=True))


def used(chosen: SampleSubset) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Returns a function that filters sample ids, (k,), to the chosen samples."""
    if chosen.ids is None and not len(chosen.left_out):
        return every
    return lambda samples: samples[chosen.includes(samples)]


class Columns(dict[str, NDArray[Any]]):
    """The columns of the index: read-only arrays (N,). An unknown name raises ConfigError.

    They are: label from `.cls`, int64, below -(2**63) + 2 if there is none; height and width in pixels, int32, 0 if
    unknown; size_bytes of the image, int64; and shard, the number of the shard, int64, computed on access.
    """

    def __init__(self, shards: ShardSet, argument: str = "subset") -> None:
        names = {"label": "label", "height": "height", "width": "width", "size_bytes": "image_size"}
        super().__init__({name: shards.index.column(column) for name, column in names.items()})
        self._shards, self._argument = shards, argument

    def __missing__(self, name: object) -> NDArray[Any]:
        if name == "shard":
            counts = np.diff(self._shards.index.sample_end, prepend=0)
            return shared(np.repeat(np.arange(len(counts)), counts))
        allowed = [*self, "shard"]
        hint = did_you_mean(str(name), allowed)
        raise ConfigError(f"{self._argument}: the index has no column {name!r}{hint}: allowed are {', '.join(allowed)}")


def check_exists(argument: str, extension: str, shards: ShardSet) -> None:
    """Checks that some sample has a component with this extension; raises ConfigError if not."""
    if extension not in shards.extensions:
        hint = did_you_mean(extension, shards.extensions)
        raise ConfigError(
            f"{argument}: no sample has a .{extension} component{hint}: the data has {_dotted(shards.extensions)}"
        )


def _dotted(extensions: Collection[str]) -> str:
    shown = ", ".join(f".{each:.{MOST_CHARACTERS}}" for each in islice(extensions, _MOST_EXTENSIONS))
    return f"{shown}{' ...' if len(extensions) > _MOST_EXTENSIONS else ''}"


def ids_of(name: str, given: SubsetOf, shards: ShardSet, all_copies: bool = False) -> NDArray[np.int64]:
    """Returns the sample ids that an argument names, (n,), in its order; raises ConfigError if it is invalid or empty.

    Args:
        all_copies: whether a key names all samples that have it, and a sample may be named twice.
    """
    if callable(given):
        chosen = np.asarray(given(Columns(shards, name)))
        if chosen.dtype != np.bool_ or chosen.shape != (len(shards),):
            raise ConfigError(
                f"{name}: the function gave {chosen.dtype} of shape {chosen.shape}: allowed is bool ({len(shards)},)"
            )
        ids = np.flatnonzero(chosen)
    elif isinstance(given, slice):
        ids = np.arange(len(shards))[given]
    elif isinstance(given, os.PathLike) or (isinstance(given, str) and given.endswith(KEY_FILE_SUFFIX)):
        ids = _ids_of_keys(name, _keys_in(name, user_path(given)), shards, all_copies)
    elif isinstance(given, str):
        ids = _ids_that_match(name, given, shards)
    elif (keys := _as_keys(name, given)) is not None:
        ids = _ids_of_keys(name, keys, shards, all_copies)
    else:
        ids = as_array(name, given)
        if ids.ndim != 1 or not (np.issubdtype(ids.dtype, np.integer) or ids.size == 0):
            raise ConfigError(
                f"{name}: found {ids.dtype} of shape {ids.shape}: allowed are sample ids (n,), keys, a file or a "
                f"pattern of keys, a slice, or a function of the index's columns; np.flatnonzero turns bools into ids"
            )
    if not all_copies and len(np.unique(ids)) < len(ids):
        raise ConfigError(f"{name}: some samples occur twice: name each once, and use Sampling(weights=) for how often")
    if len(ids) == 0:
        raise ConfigError(f"{name}: it selects none of {counted(len(shards), 'sample')}")
    if ids.min() < 0 or ids.max() >= len(shards):
        raise ConfigError(f"{name}: ids from {ids.min()} to {ids.max()}: allowed is 0 to {len(shards) - 1}")
    return ids.astype(np.int64)


def _as_keys(name: str, given: Collection[Any]) -> list[str] | None:
    """Returns the keys that an argument names if it has only strings; otherwise None."""
    listed: Any = given
    if not isinstance(given, (list, tuple)):
        array = as_array(name, given)
        listed = array.tolist() if array.ndim == 1 and array.dtype.kind in "UO" else []
    return list(listed) if len(listed) and all(isinstance(key, str) for key in listed) else None


def _keys_in(name: str, file: Path) -> list[str]:
    try:
        text = read_regular(file, _MOST_KEY_FILE_BYTES).decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise ConfigError(
            f"{name}: {file} cannot be read ({error.strerror}): it should be a file with a key on each line; a string "
            f"that does not end in {KEY_FILE_SUFFIX} is a pattern of keys"
        ) from None
    return [key for line in re.split("\r\n?|\n", text) if (key := line.strip())]


def _ids_of_keys(name: str, keys: Sequence[str], shards: ShardSet, all_copies: bool) -> NDArray[np.int64]:
    """Returns the ids of the samples with these keys, in the keys' order; of all copies, in the order of the data."""
    wanted = set(keys)
    samples = {sample: key for sample, key in enumerate(shards.index.each_key()) if key in wanted}
    id_of = {key: sample for sample, key in samples.items()}
    if len(id_of) < len(wanted):
        unknown = [key for key in dict.fromkeys(keys) if key not in id_of]
        raise ConfigError(
            f"{name}: the data lacks {len(unknown)} of {counted(len(wanted), 'key')}: {list_some(unknown)}. "
            f"{_explain_keys(shards)}"
        )
    if all_copies:
        return np.array([*samples], np.int64)
    if len(samples) > len(id_of):
        sample, key = next((sample, key) for sample, key in samples.items() if id_of[key] != sample)
        raise ConfigError(
            f"{name}: the key {key!r} has two samples, {sample} in {shards.locate(sample).shard} and {id_of[key]} in "
            f"{shards.locate(id_of[key]).shard}: name such samples by their ids"
        )
    return np.array([id_of[key] for key in keys], np.int64)


def _ids_that_match(name: str, pattern: str, shards: ShardSet) -> NDArray[np.int64]:
    matches = re.compile(fnmatch.translate(pattern)).match
    ids = [sample for sample, key in enumerate(shards.index.each_key()) if matches(key)]
    if not ids:
        raise ConfigError(
            f"{name}: no key matches {pattern!r}; a string is a pattern such as 'cat/*', or a file of keys if it ends "
            f"in {KEY_FILE_SUFFIX}. {_explain_keys(shards)}"
        )
    return np.array(ids, np.int64)


def _explain_keys(shards: ShardSet) -> str:
    some = [shards.index.key(sample) for sample in range(min(3, len(shards)))]
    return f"A key is the path in the tar up to the first dot of the file's name: the first here are {list_some(some)}"


def list_some(keys: Sequence[str]) -> str:
    """Returns a text with the first keys, for an error."""
    return f"{', '.join(describe(key, MOST_CHARACTERS) for key in keys[:3])}{' ...' if len(keys) > 3 else ''}"


def as_array(name: str, values: Collection[Any], dtype: type[np.float64] | None = None) -> NDArray[Any]:
    """Converts an argument to an array; raises ConfigError, with its name, if NumPy cannot."""
    try:
        return np.asarray(values, dtype)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: numpy cannot make an array of it: {error}") from None
