"""Makes frozen, strict dataclasses that explain invalid arguments: `part` and `argument`.

A part belongs to a recipe; an argument is a value that a loader takes. In YAML, each is a mapping of its keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, wraps
from typing import Any, NamedTuple, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, ErrorDetails
from typing_extensions import dataclass_transform

from gpuloader.base.text import did_you_mean, either
from gpuloader.errors import ConfigError, PresetError, describe
from gpuloader.recipe.model import Transform, of_others

Made = TypeVar("Made")

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_MOST_SHOWN = 300
_MOST_PROBLEMS = 20

CONVERTING = {"ConvertDtype", "ConvertImageDtype", "ToDtype", "ToPILImage", "ToTensor"}
"""torchvision's transforms that convert an image's numbers, or may do so."""
_NOT_NEEDED = {*CONVERTING, "PILToTensor", "ToImage", "ToPureTensor"}
"""torchvision's transforms that change only the type of the object that holds an image."""

_ALLOWED = {  # by pydantic's names of errors
    "bool_type": "True or False",
    "callable_type": "a function",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "a number above {gt:.12g}",
    "greater_than_equal": "a number of at least {ge:.12g}",
    "int_type": "an integer",
    "is_instance_of": "a {class}",
    "literal_error": "{expected}",
    "less_than": "a number below {lt:.12g}",
    "less_than_equal": "a number of at most {le:.12g}",
    "sequence_str": "a list",
    "string_type": "a string",
    "too_long": "a list of at most {max_length}",
    "too_short": "a list of at least {min_length}",
    "tuple_type": "a list",
}


class Where(NamedTuple):
    """The place of a value, such as mine.yaml: `transforms[0].Pad`."""

    source: str = ""
    path: str = ""

    def at(self, key: str | int) -> Where:
        """Returns the place of a key's value, or of a list's item."""
        inner = f"[{key}]" if isinstance(key, int) else f".{key}" if self.path else key
        return Where(self.source, self.path + inner)

    def found(self, value: object, rest: str, most_shown: int = 80) -> str:
        """Writes a line about a value; `rest` says what is allowed, or what to do."""
        return f"{self}: found {describe(value, most_shown)}{rest}"

    def __str__(self) -> str:
        return ": ".join(filter(None, [self.source, self.path and f"`{self.path}`"]))


def key_name(key: object) -> str:
    """Returns a mapping's key, which should be a name, as text."""
    return key if isinstance(key, str) else describe(key)


def not_needed(name: object) -> str:
    """Writes that a transform of torchvision is not needed; "" if the name is not of such a transform."""
    if not isinstance(name, str) or name not in _NOT_NEEDED:
        return ""
    return f"{name} is not needed, leave it out: batches are tensors already, of the recipe's `dtype`"


def first_lines(problems: Sequence[str]) -> list[str]:
    """Returns a line for each of the first problems, and the number of further problems."""
    more = len(problems) - _MOST_PROBLEMS
    return [*problems[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]


@dataclass_transform(frozen_default=True)
def part(kind: type[Made]) -> type[Made]:
    """Makes a class a part of a recipe: a frozen dataclass without unknown keys, which converts no types.

    Invalid arguments raise `PresetError`.
    """
    return _strict(dataclass(frozen=True)(kind), PresetError)


@dataclass_transform(frozen_default=True)
def argument(kind: type[Made]) -> type[Made]:
    """Makes a class the value of an argument, such as `Decoder`, in the same way; invalid values raise ConfigError."""
    return _strict(dataclass(frozen=True)(kind), ConfigError)


def make_part(kind: type[Made], parameters: Mapping[str, Any], where: Where) -> Made:
    """Makes a part or a value; `where` names it in errors.

    Raises:
        ConfigError: a key is invalid, unknown or missing, one line for each; for a part, a PresetError.
    """
    empty = object.__new__(kind)
    _fill(empty, (), {key_name(name): value for name, value in parameters.items()}, where)
    return empty


def as_value(kind: type[Made], name: str, argument: object) -> Made:
    """Returns the value of an argument; a mapping of its fields becomes the value.

    Raises:
        ConfigError: the argument is neither such a value nor a mapping of its fields.
    """
    if isinstance(argument, kind):
        return argument
    if isinstance(argument, Mapping):
        return make_part(kind, argument, Where(path=name))
    keys = ", ".join(f"{each.name}=" for each in fields(kind))  # type: ignore[arg-type]
    raise ConfigError(f"{name}={describe(argument)}: allowed is a {kind.__name__}({keys}), or a mapping of these")


def _strict(whole: Any, error: type[ConfigError]) -> Any:  # noqa: ANN401
    whole.__pydantic_config__ = _STRICT
    whole.__refusal__ = error

    @wraps(whole.__init__)
    def __init__(self: Any, *values: Any, **parameters: Any) -> None:  # noqa: ANN401, N807
        _fill(self, values, parameters, Where(path=type(self).__name__))

    whole.__init__ = __init__
    return whole


def _fill(empty: object, values: tuple[Any, ...], parameters: dict[str, Any], where: Where) -> None:
    kind: Any = type(empty)
    try:
        _adapter(kind).validator.validate_python(ArgsKwargs(values, parameters), self_instance=empty)
    except ValidationError as error:
        names, by_key = [field.name for field in fields(kind)], dict[str, list[ErrorDetails]]()
        for problem in error.errors():
            key, *_ = *problem["loc"], ""  # "" if it is not about a key
            if isinstance(key, int):
                key = names[key] if key < len(names) else ""
            by_key.setdefault(key, []).append(problem)
        lines = [_line(where.at(key) if key else where, key, each, names) for key, each in by_key.items()]
        raise kind.__refusal__(*first_lines(lines)) from None


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Makes the validator at the first use, because a recipe needs few of them."""
    return TypeAdapter(kind)


def _line(where: Where, name: str, problems: list[ErrorDetails], names: Sequence[str]) -> str:
    # Of several allowed types, the value is closest to the one with this error.
    problem = max(problems, key=lambda each: (not each["type"].endswith("_type"), len(each["loc"])))
    found, allowed = problem["input"], f"; allowed are {', '.join(names)}"
    match problem["type"]:
        case "unexpected_keyword_argument":
            return f"{where} is an unknown key{did_you_mean(name, names)}{allowed}"
        case "unexpected_positional_argument":
            return where.found(found, f", one value too many{allowed}", _MOST_SHOWN)
        case "missing":
            return f"{where} is missing"
        case "value_error":  # a rule on several keys; its message names the values
            return f"{where}: {problem['msg'].removeprefix('Value error, ')}"
        case "literal_error":
            hint = did_you_mean(key_name(found), re.findall(r"'([^']*)'", problem["ctx"]["expected"]))
            return where.found(found, f"{hint}; allowed are {_allowed(problems)}", _MOST_SHOWN)
        case "is_instance_of" | "tuple_type" if name == "transforms" and not isinstance(found, Transform):
            return f"{where}: {_no_transform(found)}"
        case "tuple_type" if name == "transforms":
            return where.found(found, f": allowed is a list, such as [{describe(found)}]")
    others = problems if problem["type"].endswith("_type") else [problem]
    return where.found(found, f": allowed is {_allowed(others)}", _MOST_SHOWN)


def _allowed(problems: Iterable[ErrorDetails]) -> str:
    words = [_ALLOWED.get(each["type"], each["msg"]).format(**each.get("ctx", {})) for each in problems]
    return either([*dict.fromkeys(words)])


def _no_transform(found: object) -> str:
    kind = found if isinstance(found, type) else type(found)
    if advice := not_needed(kind.__name__):
        return advice
    if issubclass(kind, Transform):
        return f"found the class {kind.__name__}: allowed are transforms, such as {kind.__name__}(...)"
    what = describe(found, _MOST_SHOWN) if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"found {what}: allowed are the transforms of gpuloader.transforms; {of_others(kind)}"


def as_plain_values(value: object, brief: bool = False) -> Any:  # noqa: ANN401
    """Converts a transform to {name: parameters} and another part to {key: value}; tuples become lists.

    Args:
        brief: drop values at their default; a transform without parameters is its name alone.
    """
    if isinstance(value, (list, tuple)):
        return [as_plain_values(each, brief) for each in value]
    if isinstance(value, dict):
        return {key: as_plain_values(each, brief) for key, each in value.items()}
    if not hasattr(value, "__dataclass_fields__"):
        return value
    values = set_values(value) if brief else values_of(value)
    if hasattr(value, "written_as"):  # a part with more than plain values
        values = value.written_as(brief)
    content = {name: as_plain_values(each, brief) for name, each in values.items()}
    if isinstance(value, Transform):
        name = type(value).__name__
        return {name: content} if content else name
    return content


def values_of(part: Any) -> dict[str, Any]:  # noqa: ANN401
    """Returns the parameters of a part."""
    return {field.name: getattr(part, field.name) for field in fields(part)}


def set_values(part: Any) -> dict[str, Any]:  # noqa: ANN401
    """Returns the parameters of a part that are required or not at their default."""
    values, needed = ((field, getattr(part, field.name)) for field in fields(part)), getattr(part, "written", ())
    return {field.name: value for field, value in values if value != field.default or field.name in needed}
