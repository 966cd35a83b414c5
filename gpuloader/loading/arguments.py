"""Validates the arguments of a loader; each error says what is allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import get_worker_info

from gpuloader.base.text import counted, did_you_mean, either, similar
from gpuloader.base.torch import is_forked_after_cuda
from gpuloader.base.values import as_python_integer, as_tuple, is_integer
from gpuloader.chain.settings import Decoder
from gpuloader.collators import Collator, collator_of, in_parts
from gpuloader.errors import ConfigError, DeviceError, describe
from gpuloader.loading.fields import FIELDS, Component, Field
from gpuloader.loading.options import BadImages, Cache, LabelFrom, Sampling
from gpuloader.loading.world import World
from gpuloader.plan import Shuffle
from gpuloader.recipe import Recipe
from gpuloader.recipe.part import as_value

ENTRIES = ("image", "label", "index", "valid", "key")
"""The entries of a batch's dictionary, without the fields."""

VALUES = {
    "sampling": Sampling,
    "label_from": LabelFrom,
    "on_error": BadImages,
    "decoder": Decoder,
    "cache": Cache,
    "world": World,
}
"""The arguments that take a value of a class, or a mapping of its fields."""
_IN_VALUES = {
    each.name: f"{argument}={value.__name__}({each.name}=...)"
    for argument, value in VALUES.items()
    for each in fields(value)
    if each.init
}

_NOT_NEEDED = "not needed here, leave it out: batches are made in threads of this process"
_OF_OTHERS = {
    "batch_sampler": "use shuffle= with a function that gives an epoch's ids, or sampling=Sampling(subset=, weights=)",
    "collate_fn": "use fields={extension: collator}, see gpuloader.collators",
    "device": 'it is called device_id here: a GPU\'s number, "cuda:0", "cpu" or a torch.device',
    "drop_last": 'use last_batch="drop" for True; "partial" keeps the short batch, "pad" and "equal" fill it',
    "generator": "use seed=: every random number is a function of seed, epoch and sample",
    "in_order": "not needed here, leave it out: batches always come in order",
    "multiprocessing_context": _NOT_NEEDED,
    "num_workers": "there are no worker processes here: set decoder=Decoder(num_threads=), or leave it out",
    "persistent_workers": _NOT_NEEDED,
    "pin_memory": "not needed here, leave it out: batches are already on loader.device",
    "pin_memory_device": "not needed here, leave it out: batches are already on loader.device",
    "prefetch_factor": "use decoder=Decoder(prefetch=), the number of batches that are decoded ahead",
    "resume": "use loader.load_state_dict(state), with a state from loader.state_dict()",
    "sampler": "use sampling=Sampling(subset=, weights=), or shuffle= with a function; ranks get separate samples",
    "timeout": _NOT_NEEDED,
    "train": 'use preset="imagenet_train" or preset="imagenet_eval"; it also chooses shuffle and last_batch',
    "transform": "use preset=Compose.from_torchvision(transform), or the name of a preset",
    "worker_init_fn": _NOT_NEEDED,
}

_SIZE = (
    'preset={"imagenet_train": {"RandomResizedCrop": {"size": 128}}}, or for evaluation '
    'preset={"imagenet_eval": {"Resize": {"size": 146}, "CenterCrop": {"size": 128}}}'
)
_AUGMENT = (
    'preset="imagenet_randaugment", or another that `gpuloader presets` lists; preset="imagenet_eval" does not augment'
)
_OF_A_RECIPE = {
    **dict.fromkeys(("crop_size", "image_size", "img_size", "input_size", "size"), _SIZE),
    **dict.fromkeys(("augment", "augmentation", "augmentations"), _AUGMENT),
    **dict.fromkeys(("mean", "std"), 'preset={"imagenet_train": {"Normalize": {"mean": [0, 0, 0], "std": [1, 1, 1]}}}'),
    "dtype": 'preset={"imagenet_train": {"dtype": "float16"}}',
    "memory_format": 'preset={"imagenet_train": {"layout": "channels_last"}}',
    "transforms": "preset=Compose([...]) with the transforms of gpuloader.transforms",
}

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Value = TypeVar("_Value")


def refuse_unknown(function: _Function) -> _Function:
    """Decorates a method: for an unknown argument, it raises ConfigError and suggests the right one.

    It also knows the arguments of other loaders. Type checkers and editors see the original method.
    """
    _, *known = signature(function).parameters

    @wraps(function)
    def checked(*values: Any, **options: Any) -> Any:  # noqa: ANN401
        if unknown := [name for name in options if name not in known]:
            raise ConfigError("; ".join(f"{name}: {_advice(name, known)}" for name in unknown))
        return function(*values, **options)

    return checked  # type: ignore[return-value]


def _advice(unknown: str, known: Sequence[str]) -> str:
    if unknown in _OF_OTHERS:
        return _OF_OTHERS[unknown]
    if unknown in _OF_A_RECIPE:
        return f"it is part of the recipe: use {_OF_A_RECIPE[unknown]}"
    near = [_IN_VALUES.get(name, name) for name in similar(unknown, [*known, *_IN_VALUES])]
    hint = f"did you mean {either(near)}?" if near else f"allowed are {', '.join(known)}"
    return f"GPULoader has no such argument; {hint}"


def as_value_or_default(kind: type[_Value], name: str, argument: object) -> _Value:
    """Returns the value of an argument, see `as_value`; None is the default value."""
    return as_value(kind, name, {} if argument is None else argument)


def resolve_shuffle(shuffle: Shuffle | bool | _Function | None, default: Shuffle) -> Shuffle | _Function:
    """Returns the `shuffle` of a loader; True and False mean the same as in torch, None the default."""
    if isinstance(shuffle, (bool, np.bool_)):
        return "full" if shuffle else "none"
    return default if shuffle is None else shuffle


def resolve_world(world: object) -> World:
    """Returns a `World` for the argument `world`, which may also be a mesh of one dimension.

    Raises:
        ConfigError: it is not an allowed value.
    """
    if world is None:
        return World.detect()
    if isinstance(world, DeviceMesh):
        return World.from_mesh(world)
    if isinstance(world, World):
        return world
    try:
        return World(**world)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigError(
            f"world={describe(world)}: allowed is a World(rank=, world_size=, local_rank=, local_world_size=), a "
            f"mapping of these, or a mesh of one dimension: {error}"
        ) from None


def resolve_device(device_id: object, world: World) -> int | None:
    """Returns a GPU's number for the argument `device_id`, or None for the CPU.

    Raises:
        ConfigError: it is not an allowed value.
        DeviceError: there is no such GPU, or CUDA cannot be used in this forked process.
    """
    name = str(device_id) if isinstance(device_id, torch.device) else device_id
    if name in (None, "cpu"):
        return None
    number = None if name in ("auto", "cuda") else _gpu_number(name)
    if is_forked_after_cuda():
        raise DeviceError(
            "this process was forked after CUDA began in its parent, so it cannot use a GPU: start it with "
            'torch.multiprocessing.get_context("spawn"), or make the loader with device_id=None for the CPU'
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto" and count == 0:
        return None
    if count == 0:
        raise DeviceError(f"device_id={device_id!r} but there is no CUDA device; use device_id=None for the CPU")
    if number is not None and number >= count:
        raise DeviceError(
            f"device_id={device_id!r} but this machine has {counted(count, 'CUDA device')}, numbered from 0"
        )
    return world.local_rank % count if number is None else number


def resolve_own_device(device_id: object) -> int | None:
    """Resolves the `device_id` of a `Stage` or a `Compose`: in a worker of torch's DataLoader, "auto" is the CPU."""
    in_a_worker = isinstance(device_id, str) and device_id == "auto" and get_worker_info() is not None
    return None if in_a_worker else resolve_device(as_python_integer(device_id), World.of_process())


def _gpu_number(name: object) -> int:
    number = int(name[5:]) if isinstance(name, str) and name.startswith("cuda:") and name[5:].isdecimal() else name
    if not is_integer(number, 0, 2**31):
        raise ConfigError(
            f'device_id={name!r}: allowed are a GPU\'s number, "cuda:0", "cuda" for the local rank\'s, None or "cpu" '
            f'for the CPU, a torch.device of those, and "auto"'
        )
    return number


def resolve_bad_images(on_error: object) -> BadImages:
    """Returns a `BadImages` for the argument `on_error`; the strings are short forms."""
    if isinstance(on_error, str):
        if on_error not in ("raise", "replace", "skip"):
            raise ConfigError(f'on_error={on_error!r}: allowed are "raise", "replace", "skip" and a BadImages(...)')
        return BadImages(replace=on_error == "replace", skip=on_error == "skip")
    return as_value(BadImages, "on_error", on_error)


def check_counting(recipe: Recipe, bad_images: BadImages, names: Mapping[str, str], leaves_out: bool) -> None:
    """Checks that an evaluation can identify replaced samples; raises ConfigError if not."""
    replacing = {
        'on_error="replace"': bad_images.replace,
        "BadImages(known=...)": bad_images.known is not None,
        "Sampling(leave_out=...)": leaves_out,
    }
    given = next((argument for argument, is_given in replacing.items() if is_given), None)
    if given and not (bad_images.skip or recipe.random or "valid" in names):
        raise ConfigError(
            f"{given}: this recipe uses no random numbers, so it is for evaluation, where replacements of bad images "
            f'would count as samples: use on_error="skip" or BadImages(skip=True), which drop bad images and padding; '
            f'or output="dict", and count only where batch["valid"]'
        )


def resolve_label_from(label_from: object) -> LabelFrom:
    """Returns a `LabelFrom` for the argument `label_from`; a string is a short form."""
    if label_from is None or isinstance(label_from, str):
        return LabelFrom(label_from)
    return as_value(LabelFrom, "label_from", label_from)


def resolve_output(
    output: object, fields: Mapping[str, Component], recipe: Recipe, in_buckets: bool
) -> tuple[dict[str, str], Callable[[dict[str, Any]], Any]]:
    """Returns the names of the entries that the batch needs, and the function that makes the batch from them."""
    if output is None:
        output = "dict" if fields else "tuple"
    entries = entries_of(fields, recipe, in_buckets)
    if twice := next((name for name, count in Counter(entries).items() if count > 1), None):
        raise ConfigError(f"fields={list(fields)!r}: {twice} is already the name of another entry of the batch")
    if output == "tuple":
        if recipe.batch != "dense":
            raise ConfigError(
                f'the recipe\'s batch={describe(recipe.batch)} has images of different sizes: use output="dict"'
            )
        output = ("image", "label")
    if output == "dict" or callable(output):
        return {entry: entry for entry in entries}, output if callable(output) else dict
    given = output if isinstance(output, (Mapping, tuple, list)) else ()
    names = {each: given[each] if isinstance(given, Mapping) else each for each in given if each in entries}
    if not names or len(names) < len(given):
        raise ConfigError(
            f'output={output!r}: allowed are "tuple", "dict", a function that takes the dictionary, and some of '
            f"{', '.join(entries)}: in a tuple, each once, or in a mapping to names"
        )
    if len(set(names.values())) < len(names):
        raise ConfigError(f"output={output!r} gives two entries the same name: use different names")
    return names, dict if isinstance(output, Mapping) else as_tuple


def _from_mapping(name: str, content: Mapping[str, Any]) -> Component:
    """Makes a field from {class: options}; a string in place of options is the source."""
    kind = next(iter(content), None)
    if len(content) != 1 or kind not in FIELDS:
        raise ConfigError(
            f"fields: {describe(dict(content))} for {name!r}: allowed is {{CLASS: {{option: value}}}}, such as "
            f'{{"Mask": {{"source": "png"}}}}, with one of {", ".join(FIELDS)}{did_you_mean(str(kind), FIELDS)}'
        )
    options = {"source": content[kind]} if isinstance(content[kind], str) else content[kind]
    return as_value(FIELDS[kind], f"fields.{name}", options)


def resolve_fields(
    listed: Sequence[str] | Mapping[str, Collator | Component | Mapping[str, Any]],
    output: object,
) -> dict[str, Component]:
    """Returns the resolved fields by name; a collator becomes a field with the name of its extension."""
    if isinstance(listed, (str, bytes)) or not isinstance(listed, Iterable):
        raise ConfigError(f"fields={listed!r}: give a list of extensions, such as ['json'], or {{extension: collator}}")
    if listed and output == "tuple":
        raise ConfigError(
            f'fields={list(listed)!r} are not in output="tuple": leave output out, or give a tuple of names'
        )
    fields: dict[str, Component] = {}
    for name, parsing in (listed if isinstance(listed, Mapping) else dict.fromkeys(listed)).items():
        if not isinstance(name, str):
            raise ConfigError(f"fields: {name!r} is not an extension: allowed are extensions such as 'json'")
        given = _from_mapping(name, parsing) if isinstance(parsing, Mapping) else parsing
        if isinstance(given, Component):
            fields[name] = given.resolve()
        elif given is None or callable(given):
            extension = name.lower().removeprefix(".")
            parts = in_parts(given or collator_of(extension))
            fields[extension] = Field(extension, parts.parse, parts.collate)
        else:
            raise ConfigError(
                f"fields: {given!r} for {name!r}: allowed is a collator, see gpuloader.collators, a Field or a target"
            )
    return fields


def check_fields(recipe: Recipe, fields: Mapping[str, Component]) -> None:
    """Checks each field, and that there is one of boxes if the recipe draws by them; raises ConfigError if not."""
    for each in fields.values():
        each.check_recipe(recipe)
    names = [name for name, field in fields.items() if field.has_boxes]
    if (drawing := recipe.by_boxes) and len(names) != 1:
        raise ConfigError(
            f"the recipe has {drawing}, which needs the boxes of each sample, and `fields` has "
            f"{counted(len(names), 'field')} of boxes: allowed is one, such as "
            f'fields={{"boxes": Boxes("json:annotations", format="xywh")}} (COCO); or leave {drawing} out of the recipe'
        )


def entries_of(fields: Mapping[str, Component], recipe: Recipe, in_buckets: bool) -> list[str]:
    """Returns the names of the entries in a batch with these fields."""
    has_targets = any(field.is_target for field in fields.values())
    further = {
        "original_size": has_targets or in_buckets,
        "size": has_targets or recipe.batch != "dense",
        "pixel_mask": isinstance(recipe.batch, dict),  # padded
        "crop": in_buckets,
        "target_size": in_buckets,
    }
    names = [*ENTRIES, *(name for name, is_there in further.items() if is_there)]
    for name, field in fields.items():
        names += [name, *(f"{name}_{column}" for column in field.columns)]
    return names
