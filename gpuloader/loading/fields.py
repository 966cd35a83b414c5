"""Fields: the entries of a batch beside the images, parsed from a component of each sample during validation."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator
from typing_extensions import Self

from gpuloader.base.text import counted, did_you_mean
from gpuloader.base.values import innermost, parse_json
from gpuloader.collators import REFUSALS, Parsing, collator_of, in_parts
from gpuloader.errors import BESIDE, ConfigError, describe
from gpuloader.images.limits import RefusalError
from gpuloader.recipe import AugmentParams, Recipe, Shape
from gpuloader.recipe.part import argument

LABEL = "label_from"
"""The name in `check_keys` under which the source of the labels is checked like a field."""
_JSON = "json:"
_MOST_KEYS = 1000  # that are compared with a wrong one
_LOOKED_AT = 16  # samples in which a key is looked for
_FAILURES = (*REFUSALS, LookupError, TypeError, AttributeError)  # that a parser may raise for a wrong value
_MOST_SAID = 1000  # characters of an error about a component, because some Python errors quote all of it
ComponentT = TypeVar("ComponentT", bound="Component")
MOST_MASK_PIXELS = 1 << 28
"""The maximum pixels of a sample's object masks, before and after the recipe; a pixel takes a byte."""


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
    """A component of each sample, from which a loader makes one or several entries of the batch.

    Attributes:
        source: the component's extension, or "json:NAME", see `Field`.
        required: whether a sample without the component is an error.
        is_target: whether the value is a location in the image, transformed with the image.
        has_boxes: whether a sample's value has `boxes`, (n, 4) left, top, right, bottom, which a recipe may need.
    """

    source: str
    required: bool = True
    is_target: ClassVar[bool] = False
    has_boxes: ClassVar[bool] = False

    @property
    def columns(self) -> Sequence[str]:
        """The names of further entries, which the batch has as NAME_COLUMN."""
        return ()

    @property
    def in_threads(self) -> bool:
        """Whether several threads may parse samples in any order, because parsing calls no user function."""
        return False

    @property
    def is_widened(self) -> bool:
        """Whether the integers become int64 on the device, from a smaller type."""
        return False

    @cached_property
    def path(self) -> str:
        """NAME of a source "json:NAME"; empty if the source is the whole component."""
        return self.source.removeprefix(_JSON) if self.source.startswith(_JSON) else ""

    @cached_property
    def extension(self) -> str:
        """The component's extension, in lower case and without its dot."""
        return "json" if self.path else self.source.lower().removeprefix(".")

    def named_keys(self, document: Any) -> Iterator[tuple[str, str, Collection[str]]]:  # noqa: ANN401
        """Yields (option, key, existing keys) for each key that an option names in a sample's JSON.

        It yields nothing for a sample without annotations.
        """
        if self.path:
            searched, last = innermost(document, self.path)
            if isinstance(searched, dict) and (self.required or last in searched):
                yield f"source={self.source!r}", last, searched.keys()

    @abstractmethod
    def resolve(self) -> Component:
        """Returns the component with its defaults filled in, as the loader uses it."""

    def check_recipe(self, recipe: Recipe) -> None:  # noqa: B027 - most can be made beside any recipe's images
        """Checks that the component is compatible with a recipe; raises ConfigError if not."""

    @abstractmethod
    def value(self, component: Any, size: Shape, drawn: NDArray[np.float64]) -> Any:  # noqa: ANN401
        """Parses a sample's component.

        Args:
            component: its bytes, or the parsed JSON for a target; None if the sample has none and it is not `required`.
            size: (height, width) of the sample's image.
            drawn: (4,) in [0, 1), the random numbers for the sample's fields.
        """

    def count_masks(self, value: Any) -> int:  # noqa: ANN401
        """Returns the number of object masks in a sample's value; each has the size of the delivered image."""
        return 0

    @abstractmethod
    def collated(self, values: list[Any], params: AugmentParams) -> Any:  # noqa: ANN401
        """Makes the entry of a batch from the values of its samples, and their random parameters.

        For a target it returns a dictionary: the entry under "", and `columns` under their names. Each is a list with
        an array or `Ragged` for each view.
        """


FIELDS: dict[str, type[Component]] = {}
"""The fields that YAML can name, by the names of their classes."""


def register(kind: type[ComponentT]) -> type[ComponentT]:
    """Registers a class of fields, so that YAML can name it."""
    FIELDS[kind.__name__] = kind
    return kind


@register
@argument
class Field(Component):
    """A value beside each image, parsed from a component of the sample; an entry of the argument `fields`.

    If a component cannot be parsed, its sample is bad, as for an image that cannot be decoded, and `on_error` applies.
    Several fields may have the same source.

    Attributes:
        source: the component's extension, such as "txt"; or "json:NAME" for the value under NAME in `json`, where
            "json:a.b" is b within a.
        parse: a function that takes the component's bytes, or the value under NAME, and returns the sample's value. It
            raises ValueError, LookupError, TypeError or AttributeError for invalid input. None parses as the
            extension's collator does, and does not change a value under NAME.
        collate: a function that takes the list of the values of B samples, and returns the entry of the batch: a list,
            or arrays, with a row for each sample. None collates as the extension's collator does; with `parse` or NAME,
            the entry is the list.

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
        """Returns the field with both functions; the extension's collator provides missing ones."""
        usual = Parsing(_same, _same) if self.path else in_parts(collator_of(self.extension))
        collate = usual.collate if self.parse is None else _same
        return replace(self, parse=self.parse or usual.parse, collate=self.collate or collate)

    def value(self, component: bytes | None, size: Shape, drawn: NDArray[np.float64]) -> Any:  # noqa: ANN401
        assert self.parse is not None
        assert component is not None
        return self.parse(under(self.path, json.loads(component)) if self.path else component)

    def collated(self, values: list[Any], params: AugmentParams) -> Any:  # noqa: ANN401
        assert self.collate is not None
        return self.collate(values)


@register
@argument
class OneOf(Field):
    """A random one of several values of each sample, such as one of five captions.

    `parse` returns the values: a list, or an array with a row for each value. The choice depends only on seed, epoch
    and sample. Fields of one loader choose the same entry from lists of the same length, such as captions and their
    tokens.

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
            ValueError: there is no value.
        """
        values = super().value(component, size, drawn)
        if not isinstance(values, (list, tuple, np.ndarray)) or len(values) == 0:
            raise ValueError(f"{describe(values)} is not a list with at least one value")
        return values[int(drawn[0] * len(values))]


@dataclass(frozen=True, eq=False)
class Ragged:
    """The concatenated rows of several samples; the batch has a list with a tensor for each sample.

    Attributes:
        values: (N, ...).
        counts: (b,) int64, the number of rows of each sample.
        shapes: the shape of each sample's tensor; None if a tensor is a sample's rows.
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
    """Returns the values of a sample's fields by name. It reads each component once, and parses it once for targets.

    Args:
        fields: resolved fields, by name.
        read: takes an extension, and whether it is required; returns the sample's component.
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
            if component is not None and field.is_target and field.path:  # other fields may change the parsed JSON
                if which not in documents:
                    documents[which] = parse_json(component)
                component = documents[which]
            values[name] = field.value(component, size, drawn)
        except (RefusalError, *_FAILURES) as error:
            raise RefusalError(f"the .{field.extension}{BESIDE}{cause_of(error)}") from error
    return values


def check_keys(
    fields: Mapping[str, Component], documents: Iterable[Callable[[], bytes | None]]
) -> dict[str, Component]:
    """Checks for misspelt keys: at least one of the first samples must have each key that an option names.

    For each field, it checks the first 16 samples with annotations. It ignores samples that cannot be read.

    Args:
        documents: functions that read the JSON of the samples.

    Returns:
        The fields that read JSON, but for which no sample has annotations.

    Raises:
        ConfigError: some samples have annotations, but none has the key.
    """
    named = {name: field for name, field in fields.items() if field.path}
    seen: dict[str, list[list[tuple[str, str, Collection[str]]]]] = {name: [] for name in named}
    for read in documents:
        left = [name for name in named if len(seen[name]) < _LOOKED_AT]
        if not left:
            break
        with suppress(RefusalError, *_FAILURES):
            document = json.loads(read() or b"null")
            for name in left:
                if options := list(named[name].named_keys(document)):
                    seen[name].append(options)
    for name, samples in seen.items():
        options = list(chain(*samples))
        found = {(option, key) for option, key, keys in options if key in keys}
        for option, key, _ in options:
            if (option, key) not in found:
                keys = sorted({it for *by, each in options if by == [option, key] for it in islice(each, _MOST_KEYS)})
                where, hint = f"fields: {name}: {type(named[name]).__name__}({option})", did_you_mean(key, keys)
                where = f"label_from={named[name].source!r}" if name == LABEL else where
                raise ConfigError(
                    f"{where}: of {counted(len(samples), 'sample')} none has the key {key!r}{hint}: the keys "
                    f"are {describe(keys, 500)}; name the right one"
                )
    return {name: field for name, field in named.items() if not seen[name]}


def cause_of(error: Exception) -> str:
    """Returns the message for an error of a function that parses or collates."""
    text, kind = f"{error!s:.{_MOST_SAID}}", type(error).__name__
    if isinstance(error, (RefusalError, *REFUSALS)):
        return text or kind
    return f"{kind}: {text}" if text else kind  # a KeyError's text is a key


def under(path: str, content: Any, required: bool = True) -> Any:  # noqa: ANN401
    """Returns the value under a path; if there is none, returns None, or raises ValueError if it is `required`."""
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
