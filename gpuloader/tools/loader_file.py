"""Reads a loader's arguments from a YAML file, for the commands that take one in place of shards."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

from gpuloader.base.text import did_you_mean
from gpuloader.errors import ConfigError
from gpuloader.recipe.strict_yaml import MAX_YAML_CHARACTERS, load_yaml
from gpuloader.shards import user_path


def read_loader(shards: Sequence[str]) -> dict[str, Any]:
    """Returns a loader's arguments: `tar` alone, or all arguments in the YAML file given instead.

    Raises:
        ConfigError: the file cannot be read, is not YAML, has no `tar`, names an unknown argument, or is given with
            shards.
    """
    file = next((shard for shard in shards if shard.endswith((".yaml", ".yml"))), None)
    if file is None:
        return {"tar": list(shards)}
    if len(shards) > 1:
        raise ConfigError(f"{file} and other shards: give a loader's file alone, and name its shards as `tar` there")
    from gpuloader import GPULoader  # here, because it takes seconds

    try:
        with user_path(file).open("rb") as opened:
            arguments = load_yaml(opened.read(MAX_YAML_CHARACTERS + 1), file)
    except OSError as error:
        raise ConfigError(f"the loader's file {file} cannot be read: {error.strerror}") from None
    known = [*signature(GPULoader).parameters]
    for name in arguments:
        if name not in known:
            hint = did_you_mean(str(name), known)
            raise ConfigError(f"{file}: GPULoader has no argument {name!r}{hint}; allowed are {', '.join(known)}")
    if "tar" not in arguments:
        raise ConfigError(f"{file}: `tar` is missing: it names the loader's shards, such as tar: shards/train/")
    return arguments
