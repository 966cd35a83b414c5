"""`Preset`: a whole recipe, validated, and reading it from YAML."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from gpuloader.errors import PresetError
from gpuloader.plan import Draws, LastBatch, Shuffle, Stream
from gpuloader.recipe.crops import Arrays, CenterCrop, Crop, RandomPaddedCrop, RandomResizedCrop
from gpuloader.recipe.jitter import ColorJitter
from gpuloader.recipe.model import Model, Triple
from gpuloader.recipe.strict_yaml import load_yaml

_FOLDER = Path(__file__).resolve().parents[1] / "configs"
_NOT_PIXELS = {"layout", "shuffle", "last_batch"}


class Preset(Model):
    """How an image becomes a tensor, and the defaults of the epoch that suit it.

    Attributes:
        size: height and width of the output in pixels.
        crop: which part of the image, and how it is resized.
        fast_idct: decode JPEGs by the fast, less exact inverse transform, on the CPU; `docs/presets.md` says how exact.
        antialias: whether the bilinear resizing filters what it shrinks, as PIL and torchvision do.
        flip: the probability of a horizontal flip.
        jitter: colour jitter, or None.
        mean, std: of the three channels, for values in [0, 1]; None leaves those values as they are. Not for uint8.
        dtype: of the output; "uint8" gives 0 to 255.
        layout: "nchw", or "channels_last" for torch's memory format of that name; the shape is (B, 3, H, W) in both.
        shuffle, last_batch: used where the loader is not told otherwise.
    """

    size: Annotated[int, Field(ge=1, le=8192)]
    crop: Crop
    fast_idct: bool = False
    antialias: bool = True
    flip: Annotated[float, Field(ge=0, le=1)] = 0.0
    jitter: ColorJitter | None = None
    mean: Triple | None = None
    std: Triple | None = None
    dtype: Literal["float32", "float16", "uint8"] = "float32"
    layout: Literal["nchw", "channels_last"] = "nchw"
    shuffle: Shuffle = "none"
    last_batch: LastBatch = "partial"

    @model_validator(mode="after")
    def _check(self) -> Preset:
        if isinstance(self.crop, CenterCrop) and self.crop.resize < self.size:
            raise ValueError(
                f"crop.resize {self.crop.resize} is below size {self.size}: the crop would leave the image"
            )
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std: give both or neither")
        if self.mean is not None and self.dtype == "uint8":
            raise ValueError('mean and std cannot be had in dtype "uint8": leave them out, or use a float dtype')
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"std {list(self.std)}: allowed are numbers above 0")
        return self

    @property
    def fingerprint(self) -> str:
        """Names the pixels: 32 hex digits, the same for recipes that make the same tensors."""
        content = json.dumps(self.model_dump(exclude=_NOT_PIXELS), sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def arrays(self, draws: Draws, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """What the graph needs beside the encoded images, one row for each sample: the crop's and jitter's arrays, and

        mirror    (n,) int32    1 where the image is flipped
        """
        arrays = self.crop.arrays(self.size, draws, heights, widths)
        arrays["mirror"] = (draws.uniform(Stream.FLIP, 1)[:, 0] < self.flip).astype(np.int32)
        if self.jitter is not None:
            arrays |= self.jitter.arrays(draws)
        return arrays


_CROPS: dict[str, type[Model]] = {
    "random_resized": RandomResizedCrop,
    "center": CenterCrop,
    "random_padded": RandomPaddedCrop,
}
_MODELS: dict[tuple[str, ...], type[Model]] = {
    (): Preset,
    ("jitter",): ColorJitter,
    **{("crop", kind): model for kind, model in _CROPS.items()},
}


def preset_names() -> list[str]:
    """The names of the presets that come with the library."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def preset_text(name: str) -> str:
    """The YAML of a preset that comes with the library.

    Raises:
        PresetError: there is none of that name.
    """
    if name not in preset_names():
        raise PresetError(
            f"no preset is called {name!r}{_did_you_mean(name, preset_names())}: there are "
            f"{', '.join(preset_names())}; or give a path that ends in .yaml, or a Preset"
        )
    return (_FOLDER / f"{name}.yaml").read_text()


def load_preset(source: str | Path | Preset, overrides: Mapping[str, Any] | None = None) -> Preset:
    """A preset by name, by path of a YAML file, or as it is; `overrides` replaces values, in nested mappings too.

    Raises:
        PresetError: names the file, the key, what was found, what is allowed and the nearest right name.
    """
    if not isinstance(source, (str, Path, Preset)) or not isinstance(overrides or {}, Mapping):
        raise PresetError(
            f"preset={source!r}, preset_overrides={overrides!r}: allowed are a name, a path or a Preset, and a mapping"
        )
    if isinstance(source, Preset):
        where, content = "the Preset", source.model_dump()
    elif isinstance(source, Path) or "/" in source or source.endswith((".yaml", ".yml")):
        path = Path(source).expanduser()
        if not path.is_file():
            raise PresetError(f"no such preset file: {source}")
        where, content = str(source), load_yaml(path.read_bytes(), str(source))
    else:
        where, content = f"{source}.yaml", load_yaml(preset_text(source), f"{source}.yaml")
    if overrides:
        where, content = f"{where} with preset_overrides", _merged(content, overrides)
    try:
        return Preset.model_validate(content)
    except ValidationError as error:
        lines = dict.fromkeys(_explained(where, problem) for problem in error.errors())
        raise PresetError("\n".join(lines)) from None


def _merged(content: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(content)
    for key, value in overrides.items():
        old = content.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("kind") in (None, old.get("kind")):
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged


def _explained(where: str, problem: ErrorDetails) -> str:
    location = tuple(part for part in problem["loc"] if isinstance(part, str))
    key = ".".join(part for part in location if part not in _CROPS)
    found, message = problem["input"], problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        allowed = list(_MODELS[location[:-1]].model_fields)
        return (
            f"{where}: `{key}` is not a key of a preset{_did_you_mean(location[-1], allowed)}; "
            f"allowed there are {', '.join(allowed)}"
        )
    if problem["type"] == "missing":
        few = isinstance(problem["loc"][-1], int)
        return f"{where}: `{key}`: found {found!r}: too few numbers" if few else f"{where}: the key `{key}` is missing"
    if problem["type"] == "union_tag_not_found":
        return f"{where}: the key `{key}.kind` is missing; allowed are {', '.join(map(repr, _CROPS))}"
    if problem["type"] == "value_error":  # a rule on several keys, whose message says what was found
        return f"{where}: {f'`{key}`: ' if key else ''}{message}"
    if problem["type"] in ("literal_error", "union_tag_invalid"):
        expected = problem["ctx"].get("expected", problem["ctx"].get("expected_tags", ""))
        value = found.get("kind") if isinstance(found, dict) else found
        hint = _did_you_mean(str(value), re.findall(r"'([^']*)'", expected))
        return f"{where}: `{key}`: found {value!r}{hint}; allowed are {expected}"
    return f"{where}: `{key}`: found {found!r}: {message[0].lower()}{message[1:]}"


def _did_you_mean(name: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(name, allowed, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
