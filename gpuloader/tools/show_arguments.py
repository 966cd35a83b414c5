"""Checks the arguments of `show`, without torch and DALI: their imports take seconds, and a mistake is said at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuloader.errors import ConfigError
from gpuloader.helpers.values import is_integer
from gpuloader.loading.selection import Sources, resolve_sources
from gpuloader.plan import check_seed
from gpuloader.recipe import Recipe, load_preset
from gpuloader.shards.remote.urls import remote_protocol
from gpuloader.tools.outputs import PICTURES, check_output

MOST_IMAGES = 1000


def as_recipe(preset: str | Path | Recipe | Mapping[str, Any]) -> str | Path | Recipe:
    """Returns a loader's `preset` as `show` takes it: a mapping, such as a loader's YAML may have, becomes a recipe.

    Raises:
        PresetError: the mapping is no recipe.
    """
    return load_preset(preset) if isinstance(preset, Mapping) else preset


def check_shown(
    tar: Sources, preset: str | Path | Recipe, overrides: Mapping[str, Any] | None = None, seed: int = 0
) -> None:
    """Checks what the picture and the page both show.

    Raises:
        PresetError: there is no such recipe, or it is invalid.
        ShardNotFoundError: there is no such shard on a disk; stores are not asked.
        ConfigError: the seed is invalid.
    """
    load_preset(preset, overrides or {})
    check_seed(seed)
    if not any(map(remote_protocol, _texts(tar))):
        resolve_sources(tar)


def check_picture(picture: Path, samples: int | Sequence[int | str], versions: int, columns: int | None) -> None:
    """Checks what `show` draws, and where.

    Raises:
        ConfigError: an argument is invalid, or the file cannot be written.
    """
    check_output(picture, PICTURES)
    for name, number, least in (("versions", versions, 1), ("columns", 2 if columns is None else columns, 2)):
        if not is_integer(number, least, MOST_IMAGES + 1):
            raise ConfigError(f"{name}={number!r}: allowed is an integer from {least} to {MOST_IMAGES}")
    if isinstance(samples, (str, bool)) or not samples or (isinstance(samples, int) and samples < 0):
        raise ConfigError(f"samples={samples!r}: allowed is a number above 0, or a list of ids and keys")


def _texts(tar: object) -> Iterator[str]:
    """Yields the texts that name shards in a loader's `tar`, of all its sources."""
    if isinstance(tar, str):
        yield tar
    elif isinstance(tar, Mapping):
        yield from _texts(tar.get("tar"))
    elif isinstance(tar, Sequence):
        for each in tar:
            yield from _texts(each)
