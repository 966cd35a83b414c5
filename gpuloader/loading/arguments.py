"""Checks of a loader's arguments, each with an error that says what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch

from gpuloader.collators import Collator, collator_of
from gpuloader.errors import ConfigError, DeviceError
from gpuloader.helpers.cores import available_cores
from gpuloader.loading.world import World
from gpuloader.plan import Plan, Shuffle
from gpuloader.recipe import Preset
from gpuloader.shards import Labels

ENTRIES = ("image", "label", "index", "valid", "key")
"""What a dictionary of a batch has beside the fields."""

_GPU_THREADS = 8


def check_mixing(preset: Preset, plan: Plan, labels: Labels | None) -> None:
    """Sees that there are pairs of samples with labels, where the recipe mixes."""
    if preset.mix is None:
        return
    if labels is None:
        raise ConfigError("the recipe mixes samples, and label_from=None gives no labels to mix: take another recipe")
    if plan.batch_size % 2:
        raise ConfigError(f"batch_size={plan.batch_size}: the recipe mixes neighbours, so allowed are even numbers")
    if plan.last_batch == "partial":
        raise ConfigError('last_batch="partial" would part neighbours that the recipe mixes: use "drop" or "pad"')


def refuse_unknown(unknown: Collection[str], known: Collection[str]) -> None:
    """Says what the arguments of torch's `DataLoader` are called here, and what else was meant.

    Raises:
        ConfigError: there is one.
    """
    if not unknown:
        return
    sentences = []
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(known)}"
        sentences.append(f"{name}: {_OF_TORCH.get(name, f'GPULoader has no such argument; {hint}')}")
    raise ConfigError("; ".join(sentences))


_NOT_NEEDED = "not needed here, leave it out: batches are made in threads of this process"
_OF_TORCH = {
    "batch_sampler": "use shuffle=, with a function that gives an epoch's sample ids, or subset= and sample_weights=",
    "collate_fn": 'use fields={extension: collator} with output="dict", see gpuloader.collators',
    "device": 'it is called device_id here: a GPU\'s number, "cuda:0", "cpu" or a torch.device',
    "drop_last": 'use last_batch="drop" for True; "partial" keeps the short batch, "pad" fills it',
    "generator": "use seed=: every random number is a function of seed, epoch and sample",
    "in_order": "not needed here, leave it out: batches always come in order",
    "multiprocessing_context": _NOT_NEEDED,
    "num_workers": "there are no worker processes here: use num_threads= for the threads that decode, or leave it out",
    "persistent_workers": _NOT_NEEDED,
    "pin_memory": "not needed here, leave it out: batches are on loader.device already",
    "pin_memory_device": "not needed here, leave it out: batches are on loader.device already",
    "prefetch_factor": "use prefetch=, the batches that are decoded before you ask for them",
    "sampler": "use subset=, sample_weights=, or shuffle= with a function; ranks share the data by themselves",
    "timeout": _NOT_NEEDED,
    "transform": "use preset=Compose.from_torchvision(transform), or the name of a preset",
    "worker_init_fn": _NOT_NEEDED,
}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def resolve_shuffle(shuffle: Shuffle | bool | _Function) -> Shuffle | _Function:
    """A loader's `shuffle`, where True and False mean as in torch."""
    if isinstance(shuffle, (bool, np.bool_)):
        return "full" if shuffle else "none"
    return shuffle


def resolve_device(device_id: object, world: World) -> int | None:
    """A GPU's number, or None for the CPU, of what `device_id` of a loader may be.

    Raises:
        ConfigError: it is none of these.
        DeviceError: there is no such GPU, or CUDA cannot be used in this forked process.
    """
    name = str(device_id) if isinstance(device_id, torch.device) else device_id
    if name in (None, "cpu"):
        return None
    number = None if name in ("auto", "cuda") else _gpu_number(name)
    if torch.cuda._is_in_bad_fork():
        raise DeviceError(
            "this process was forked after CUDA began in its parent, so no GPU can be used in it: start it by "
            'torch.multiprocessing.get_context("spawn"), or make the loader with device_id=None for the CPU'
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto" and count == 0:
        return None
    if count == 0:
        raise DeviceError(f"device_id={device_id!r} but no CUDA device; use device_id=None for the CPU")
    if number is not None and number >= count:
        raise DeviceError(f"device_id={device_id!r} but there are {count} CUDA devices, numbered from 0")
    return world.local_rank % count if number is None else number


def _gpu_number(name: object) -> int:
    number = int(name[5:]) if isinstance(name, str) and name.startswith("cuda:") and name[5:].isdecimal() else name
    if not is_integer(number, 2**31):
        raise ConfigError(
            f'device_id={name!r}: allowed are a GPU\'s number, "cuda:0", "cuda" for the local rank\'s, None or "cpu" '
            f'for the CPU, a torch.device of those, and "auto"'
        )
    return number


def default_threads(device_id: int | None, world: World) -> int:
    """The decoding threads where none are asked for: this process's share of the cores, up to 8 beside a GPU."""
    cores = max(1, available_cores() // world.local_world_size)
    return cores if device_id is None else min(cores, _GPU_THREADS)


def decoder_knobs(hw_decoder_load: float | None, hybrid_huffman_threshold: int | None) -> dict[str, float]:
    """Those of DALI's decoder that are given, by DALI's names."""
    load, threshold = hw_decoder_load, hybrid_huffman_threshold
    if load is not None and (isinstance(load, bool) or not isinstance(load, (int, float)) or not 0 <= load <= 1):
        raise ConfigError(f"hw_decoder_load={load!r}: allowed is a share in [0, 1], or None")
    if threshold is not None and not is_integer(threshold, 2**31):
        raise ConfigError(f"hybrid_huffman_threshold={threshold!r}: allowed is an integer from 0 to 2**31 - 1, or None")
    knobs = {"hw_decoder_load": load, "hybrid_huffman_threshold": threshold}
    return {name: value for name, value in knobs.items() if value is not None}


def plain(value: Any) -> Any:  # noqa: ANN401
    """Numpy's integers as Python's, so that they can be compared and kept as JSON."""
    return value.item() if isinstance(value, np.integer) else value


def is_integer(value: object, end: int) -> TypeGuard[int]:
    """Whether it is an integer in [0, end)."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < end


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """The value, if it is allowed."""
    if value not in allowed:
        raise ConfigError(f"{name}={value!r}: allowed are {', '.join(map(repr, allowed))}")
    return value


def one_to(most: int, name: str, value: int) -> int:
    """The value, if it is an integer from 1 to `most`."""
    if not is_integer(value, most + 1) or value == 0:
        raise ConfigError(f"{name}={value!r}: allowed is an integer from 1 to {most}")
    return value


def output_names(output: object, fields: tuple[str, ...]) -> dict[str, str] | None:
    """The names in the batch by what stands under them; None for a tuple."""
    entries = (*ENTRIES, *fields)
    if output == "tuple":
        return None
    if output == "dict":
        return {entry: entry for entry in entries}
    if not isinstance(output, Mapping) or not output or not set(output) <= set(entries):
        raise ConfigError(
            f'output={output!r}: allowed are "tuple", "dict" and a mapping of some of {", ".join(entries)} to names'
        )
    if len(set(output.values())) < len(output):
        raise ConfigError(f"output={output!r} gives two entries the same name: each needs a name of its own")
    return dict(output)


def check_fields(fields: Sequence[str] | Mapping[str, Collator], output: object) -> dict[str, Collator]:
    """The collator of each extension."""
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise ConfigError(f"fields={fields!r}: give a list of extensions, such as ['json'], or {{extension: collator}}")
    if fields and output == "tuple":
        raise ConfigError(f'fields={list(fields)!r} are handed out with output="dict" only')
    given = fields if isinstance(fields, Mapping) else dict.fromkeys(fields)
    collators = {}
    for extension, collator in given.items():
        if not isinstance(extension, str):
            raise ConfigError(f"fields: {extension!r} is no extension: allowed are those of components, such as 'json'")
        name = extension.lower().removeprefix(".")
        if name in ENTRIES:
            raise ConfigError(f"fields={list(fields)!r}: {name} stands for something else in the batch")
        if not (collator is None or callable(collator)):
            raise ConfigError(f"fields: {collator!r} for {extension!r}: allowed is a collator, see gpuloader.collators")
        collators[name] = collator or collator_of(name)
    return collators
