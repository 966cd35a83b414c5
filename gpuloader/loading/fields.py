"""Fields: what a batch has beside the images, parsed from a component of each sample before the sample is accepted."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator
from typing_extensions import Self

from gpuloader.collators import REFUSALS, Parsing, collator_of, in_parts
from gpuloader.errors import BESIDE, ConfigError, describe
from gpuloader.helpers.text import counted, did_you_mean
from gpuloader.helpers.values import innermost
from gpuloader.images.limits import RefusalError
from gpuloader.recipe import AugmentParams, Recipe, Shape
from gpuloader.recipe.part import argument

_JSON = "json:"
_MOST_KEYS = 1000  # that are compared with a wrong one
_LOOKED_AT = 16  # samples, whether they have the keys that an option names
_FAILURES = (*REFUSALS, LookupError, TypeError, AttributeError)  # of a parser, for a value that is not as it expects
_MOST_SAID = 1000  # characters of an error about a component, because some Python errors quote all of it
ComponentT = TypeVar("ComponentT", bound="Component")
MOST_MASK_PIXELS = 1 << 28
"""How many pixels the masks of a sample's objects may have, before the recipe and after it; each takes a byte."""


def _check_source(source: str) -> str:
    if not source.removeprefix(_JSON).strip("."):
        raise ValueError(f'found {source!r}: allowed are an extension, such as "txt", and "json:NAME"')
    return source


def _check_json(source: str) -> str:
    if not source.startswith(_JSON) or not source.removeprefix(_JSON):
        raise ValueError(f'found {source!r}: allowed is "json:NAME"')
    return source


Source: TypeAlias = Annotated[str, AfterValidator(_check_source)]
JsonSource: TypeAlias = Annotated[Source, AfterValidator(_check_json)]


class Component(ABC):
    """A component of each sample, from which a loader makes an entry of the batch, or several.

    Attributes:
        source: the component's extension, or "json:NAME", see `Field`.
        required: whether a sample without it is an error.
        is_target: whether it is a place in the image, and follows the pixels.
        has_boxes: whether a sample's value has `boxes`, (n, 4) left, top, right, bottom, by which a recipe may draw.
    """

    source: str
    required: bool = True
    is_target: ClassVar[bool] = False
    has_boxes: ClassVar[bool] = False

    @property
    def columns(self) -> Sequence[str]:
        """The names of its further entries: the batch has them as NAME_COLUMN."""
        return ()

    @property
    def in_threads(self) -> bool:
        """Whether several threads parse it, in any order: it calls no function of a user, and is mostly not Python."""
        return False

    @property
    def is_widened(self) -> bool:
        """Whether a batch has its integers as int64: up to the device, they are in a type that takes less."""
        return False

    @cached_property
    def path(self) -> str:
        """NAME of a source "json:NAME"; empty for all of the component."""
        return self.source.removeprefix(_JSON) if self.source.startswith(_JSON) else ""

    @cached_property
    def extension(self) -> str:
        """The component's extension, in lower case and without its dot."""
        return "json" if self.path else self.source.lower().removeprefix(".")

    def named_keys(self, document: Any) -> Iterator[tuple[str, str, Collection[str]]]:  # noqa: ANN401
        """Yields the keys that its options name in a sample's JSON: the option, the key, and the keys that there are.

        It yields nothing of a sample without annotations.
        """
        if self.path:
            searched, last = innermost(document, self.path)
            if isinstance(searched, dict) and (self.required or last in searched):
                yield f"source={self.source!r}", last, searched.keys()

    @abstractmethod
    def resolve(self) -> Component:
        """Returns what a loader uses."""

    def check_recipe(self, recipe: Recipe) -> None:  # noqa: B027 - most can be made beside any recipe's images
        """Checks that it can be made beside a recipe's images; raises ConfigError if it cannot."""

    @abstractmethod
    def value(self, component: Any, size: Shape, drawn: NDArray[np.float64]) -> Any:  # noqa: ANN401
        """Parses a sample's component.

        Args:
            component: its bytes, or all values of a target's JSON; None if the sample has none, which only happens if
                it is not `required`.
            size: (height, width) of the sample's image.
            drawn: (4,) in [0, 1), what the plan draws for the sample's fields.
        """

    def count_masks(self, value: Any) -> int:  # noqa: ANN401
        """Returns how many masks of objects a sample's value has: a batch has each as large as the delivered image."""
        return 0

    @abstractmethod
    def collated(self, values: list[Any], drawn: AugmentParams) -> Any:  # noqa: ANN401
        """Makes the entry of a batch from the values of its samples, and what the recipe draws for them.

        That of a target is a dictionary: the entry itself is under "", and `columns` under their names; each is a list
        with an array or `Ragged` for each view.
        """


FIELDS: dict[str, type[Component]] = {}
"""The fields that YAML can name, by the names of their classes."""


def register(kind: type[ComponentT]) -> type[ComponentT]:
    """Makes a field one that YAML can name."""
    FIELDS[kind.__name__] = kind
    return kind


@register
@argument
class Field(Component):
    """A value beside each image, parsed from one component of the sample; the argument `fields` names it.

    A component that cannot be parsed makes its sample bad, as an image that cannot be decoded does: `on_error` decides
    whether the sample is replaced. Several fields may have one source.

    Attributes:
        source: the component's extension, such as "txt"; or "json:NAME" for the value under NAME in `json`, where
            "json:a.b" is b within a.
        parse: takes the component's bytes, or the value under NAME, and returns the sample's value. It raises
            ValueError, LookupError, TypeError or AttributeError for what it cannot parse. None parses as the
            extension's collator does, and takes the value under NAME as it is.
        collate: takes the values of a batch's B samples in a list, and returns what a collator returns: a list, or
            arrays, with a row for each sample. None collates as the extension's collator does; with `parse` or NAME,
            the list is the entry.

    Raises:
        ConfigError: the source is not an extension or "json:NAME", or a function cannot be called.

    Example:
        >>> from gpuloader import Field, GPULoader
        >>> fields = {"digit": Field("cls"), "is_even": Field("cls", lambda digit: int(digit) % 2 == 0)}
        >>> loader = GPULoader("shards/", 4, "cpu", preset="cifar10_eval", fields=fields)
        >>> batch = next(iter(loader))
        >>> batch["digit"], batch["is_even"]
        (tensor([0, 1, 2, 3]), [True, False, True, False])
    """

    source: Source
    parse: Callable[[Any], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.parse, Parsing):
            raise ValueError(
                f"parse={self.parse!r}: this is a collator, which takes all samples of a batch: give it as `collate`, "
                f"{type(self).__name__}({self.source!r}, collate=...)"
            )

    def resolve(self) -> Self:
        """Returns the field with both functions, taken from the extension's collator where it has none."""
        usual = Parsing(_same, _same) if self.path else in_parts(collator_of(self.extension))
        collate = usual.collate if self.parse is None else _same
        return replace(self, parse=self.parse or usual.parse, collate=self.collate or collate)

    def value(self, component: bytes | None, size: Shape, drawn: NDArray[np.float64]) -> Any:  # noqa: ANN401
        assert self.parse is not None
        assert component is not None
        return self.parse(under(self.path, json.loads(component)) if self.path else component)

    def collated(self, values: list[Any], drawn: AugmentParams) -> Any:  # noqa: ANN401
        assert self.collate is not None
        return self.collate(values)


@register
@argument
class OneOf(Field):
    """One of several values of each sample, such as one of five captions, drawn by the plan.

    `parse` returns the values: a list, or an array with a row for each. Which one is drawn depends only on seed, epoch
    and sample. Fields of one loader draw the same entry of lists of the same length, such as a caption and its tokens.

    Example:
        >>> import numpy as np
        >>> from gpuloader import GPULoader, OneOf
        >>> from webdataset import TarWriter
        >>> sample = {"__key__": "0", "jpg": np.zeros((64, 64, 3)), "json": {"captions": ["a cat", "a pet"]}}
        >>> with TarWriter("captions.tar") as writer:
        ...     _ = writer.write(sample)
        >>> fields = {"caption": OneOf("json:captions")}
        >>> loader = GPULoader("captions.tar", 1, "cpu", preset="clip_eval", fields=fields)
        >>> [batch["caption"] for _ in range(4) for batch in loader]
        [['a cat'], ['a cat'], ['a pet'], ['a cat']]
    """

    def value(self, component: bytes | None, size: Shape, drawn: NDArray[np.float64]) -> Any:  # noqa: ANN401
        """Returns one of the parsed values.

        Raises:
            ValueError: there are none.
        """
        values = super().value(component, size, drawn)
        if not isinstance(values, (list, tuple, np.ndarray)) or len(values) == 0:
            raise ValueError(f"{describe(values)} is not a list with at least one value")
        return values[int(drawn[0] * len(values))]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of several samples, one after the other; a batch has a list of their tensors.

    Attributes:
        values: (N, ...).
        counts: (b,) int64, how many of the rows each sample has.
        shapes: the shape of each sample's tensor; None if it is that of its rows.
    """

    values: NDArray[Any]
    counts: NDArray[np.int64]
    shapes: Sequence[tuple[int, ...]] | None = None

    def __len__(self) -> int:
        return len(self.counts)


def parse_fields(
    fields: Mapping[str, Component],
    read: Callable[[str, bool], bytes | None],
    size: Shape,
    drawn: NDArray[np.float64],
) -> dict[str, Any]:
    """Returns the values of a sample's fields by name; reads each component once, and parses it once for all targets.

    Args:
        fields: resolved.
        read: reads the sample's component of an extension, which may be required.
        size, drawn: as for `Component.value`.

    Raises:
        RefusalError: a component is too large or cannot be parsed.
    """
    components: dict[tuple[str, bool], bytes | None] = {}
    documents: dict[tuple[str, bool], Any] = {}
    values = {}
    for name, field in fields.items():
        which = field.extension, field.required
        if which not in components:
            components[which] = read(*which)
        component: Any = components[which]
        try:
            if component is not None and field.is_target and field.path:  # other fields may change what they parse
                if which not in documents:
                    documents[which] = json.loads(component)
                component = documents[which]
            values[name] = field.value(component, size, drawn)
        except (RefusalError, *_FAILURES) as error:
            raise RefusalError(f"the .{field.extension}{BESIDE}{cause_of(error)}") from error
    return values


def check_keys(
    fields: Mapping[str, Component], documents: Iterable[Callable[[], bytes | None]]
) -> dict[str, Component]:
    """Checks that at least one of some samples has each key that an option names, for it may be misspelt.

    Of each field, the first 16 samples with annotations count. One that cannot be read counts when it is delivered.

    Args:
        documents: read the JSON of the samples.

    Returns:
        The fields that read JSON, and of which no sample has annotations.

    Raises:
        ConfigError: no sample has a key, and some have annotations.
    """
    named = {name: field for name, field in fields.items() if field.path}
    seen: dict[str, list[tuple[str, str, Collection[str]]]] = {name: [] for name in named}
    samples = dict.fromkeys(named, 0)
    for read in documents:
        left = [name for name in named if samples[name] < _LOOKED_AT]
        if not left:
            break
        with suppress(RefusalError, *_FAILURES):
            document = json.loads(read() or b"null")
            for name in left:
                options = list(named[name].named_keys(document))
                samples[name] += bool(options)
                seen[name] += options
    for name, options in seen.items():
        found = {(option, key) for option, key, keys in options if key in keys}
        for option, key, each_key in options:
            if (option, key) not in found:
                keys = sorted(islice(each_key, _MOST_KEYS))
                where, hint = f"{name}: {type(named[name]).__name__}({option})", did_you_mean(key, keys)
                raise ConfigError(
                    f"fields: {where}: of {counted(samples[name], 'sample')} none has the key {key!r}{hint}: the keys "
                    f"are {describe(keys, 500)}; name the right one"
                )
    return {name: field for name, field in named.items() if not samples[name]}


def cause_of(error: Exception) -> str:
    """Returns what a function that parses or collates says of a value that it cannot take."""
    text, kind = f"{error!s:.{_MOST_SAID}}", type(error).__name__
    if isinstance(error, (RefusalError, *REFUSALS)):
        return text or kind
    return f"{kind}: {text}" if text else kind  # a KeyError's text is a key


def under(path: str, content: Any, required: bool = True) -> Any:  # noqa: ANN401
    """Returns the value under a path; if there is none, None, or a ValueError if it is `required`."""
    searched, last = innermost(content, path)
    if not required and not (isinstance(searched, dict) and last in searched):
        return None
    if not isinstance(searched, dict):
        raise ValueError(f"nothing is under {last!r}: it is {describe(searched)}")
    if last not in searched:
        raise ValueError(f"nothing is under {last!r}: its keys are {describe(sorted(searched))}")
    return searched[last]


def _same(value: Any) -> Any:  # noqa: ANN401
    return value
