"""Makes frozen, strict dataclasses that explain invalid arguments: `part` and `argument`.

A part belongs to a recipe; an argument is a value that a loader takes. In YAML, each is a mapping of its keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, wraps
from typing import Any, TypeVar

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
NOT_NEEDED = {*CONVERTING, "PILToTensor", "ToImage", "ToPureTensor"}
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


def make_part(kind: type[Made], parameters: Mapping[str, Any], where: str) -> Made:
    """Makes a part or a value; `where` names it in errors, and opens a "`" that is closed after the key's name.

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
        return make_part(kind, argument, f"`{name}")
    keys = ", ".join(f"{each.name}=" for each in fields(kind))  # type: ignore[arg-type]
    raise ConfigError(f"{name}={describe(argument)}: allowed is a {kind.__name__}({keys}), or a mapping of these")


def key_name(key: object) -> str:
    """Returns a mapping's key, which should be a name, as text."""
    return key if isinstance(key, str) else describe(key)


def first_lines(problems: Sequence[str]) -> list[str]:
    """Returns a line for each of the first problems, and the number of further problems."""
    more = len(problems) - _MOST_PROBLEMS
    return [*problems[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]


def _strict(whole: Any, error: type[ConfigError]) -> Any:  # noqa: ANN401
    whole.__pydantic_config__ = _STRICT
    whole.__refusal__ = error

    @wraps(whole.__init__)
    def __init__(self: Any, *values: Any, **parameters: Any) -> None:  # noqa: ANN401, N807
        _fill(self, values, parameters, f"`{type(self).__name__}")

    whole.__init__ = __init__
    return whole


def _fill(empty: object, values: tuple[Any, ...], parameters: dict[str, Any], where: str) -> None:
    kind: Any = type(empty)
    try:
        _adapter(kind).validator.validate_python(ArgsKwargs(values, parameters), self_instance=empty)
    except ValidationError as error:
        names = [field.name for field in fields(kind)]
        by_key: dict[str, list[ErrorDetails]] = {}
        for problem in error.errors():
            by_key.setdefault(_key(problem, names), []).append(problem)
        lines = first_lines([_line(where, key, problems, names) for key, problems in by_key.items()])
        raise kind.__refusal__(*lines) from None


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Makes the validator at the first use, because a recipe needs few of them."""
    return TypeAdapter(kind)


def _key(problem: ErrorDetails, names: Sequence[str]) -> str:
    """Returns the invalid key; "" if the problem is not about a key, or is a superfluous value."""
    first = problem["loc"][0] if problem["loc"] else ""
    if isinstance(first, int):
        return names[first] if first < len(names) else ""
    return first


def _nearest(problems: list[ErrorDetails]) -> ErrorDetails:
    """Returns the error for the allowed type that the value is closest to."""
    return max(problems, key=lambda problem: (not problem["type"].endswith("_type"), len(problem["loc"])))


def _line(where: str, name: str, problems: list[ErrorDetails], names: Sequence[str]) -> str:
    problem = _nearest(problems)
    key = f"{where}{'' if where.endswith('`') else '.'}{name}`" if name else f"{where}`"
    key = key.removesuffix(": ``")
    found = problem["input"]
    match problem["type"]:
        case "unexpected_keyword_argument":
            return f"{key} is an unknown key{did_you_mean(name, names)}; allowed are {', '.join(names)}"
        case "unexpected_positional_argument":
            return f"{key}: found {describe(found, _MOST_SHOWN)}, one value too many; allowed are {', '.join(names)}"
        case "missing":
            return f"{key} is missing"
        case "value_error":  # a rule on several keys; its message names the values
            return f"{key}: {problem['msg'].removeprefix('Value error, ')}"
        case "literal_error":
            hint = did_you_mean(key_name(found), re.findall(r"'([^']*)'", problem["ctx"]["expected"]))
            return f"{key}: found {describe(found, _MOST_SHOWN)}{hint}; allowed are {_allowed(problems)}"
        case "is_instance_of" | "tuple_type" if name == "transforms" and not isinstance(found, Transform):
            return f"{key}: {_no_transform(found)}"
        case "tuple_type" if name == "transforms":
            return f"{key}: found {describe(found)}: allowed is a list, such as [{describe(found)}]"
    others = problems if problem["type"].endswith("_type") else [problem]
    return f"{key}: found {describe(found, _MOST_SHOWN)}: allowed is {_allowed(others)}"


def _allowed(problems: list[ErrorDetails]) -> str:
    words = [_ALLOWED.get(each["type"], each["msg"]).format(**each.get("ctx", {})) for each in problems]
    return either([*dict.fromkeys(words)])


def not_needed(name: str) -> str:
    """Writes the message for a transform in `NOT_NEEDED`."""
    return f"{name} is not needed, leave it out: batches are tensors already, of the recipe's `dtype`"


def _no_transform(found: object) -> str:
    kind = found if isinstance(found, type) else type(found)
    if kind.__name__ in NOT_NEEDED:
        return not_needed(kind.__name__)
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
