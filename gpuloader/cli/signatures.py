"""Makes options of commands from a tool's function: its parameters' names, types, defaults and help texts.

They are read from its source, because importing a tool imports torch and DALI, which takes seconds.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import update_wrapper
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

_TYPES = {"bool": bool, "str": str, "Path": Path, "int": int, "float": float}  # a path may be a URL, so it is text
"""The types of options. A parameter's option has the first of these that its annotation names, or else text."""


def from_tool(tool: str, *names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the parameters `names` of a tool to a command as options, in place of the parameter `run`.

    The command calls `run(...)` with the tool's other arguments; it may override the options.

    Args:
        tool: the function, as in "gpuloader.tools.bench.bench".
    """
    module, _, function = tool.rpartition(".")

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        options = list(_options(module, function, names))

        def call(**given: Any) -> None:  # noqa: ANN401
            chosen = {name: given.pop(name) for name in names}

            def run(*arguments: Any, **others: Any) -> Any:  # noqa: ANN401
                return getattr(import_module(module), function)(*arguments, **{**chosen, **others})

            command(run=run, **given)

        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(command, eval_str=True).parameters.values():
            parameters += options if own.name == "run" else [own.replace(kind=own.KEYWORD_ONLY)]
        update_wrapper(call, command)
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return call

    return decorate


def _options(module: str, function: str, names: tuple[str, ...]) -> Iterator[inspect.Parameter]:
    _, *path = module.split(".")
    source = files("gpuloader").joinpath(*path[:-1], f"{path[-1]}.py").read_text("utf-8")
    [tool] = (each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef) and each.name == function)
    texts = argument_texts(ast.get_docstring(tool) or "")
    given = tool.args
    defaults = [*[None] * (len(given.args) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    for argument, default in zip([*given.args, *given.kwonlyargs], defaults, strict=True):
        if argument.arg not in names:
            continue
        assert argument.annotation is not None
        value = inspect.Parameter.empty if default is None else ast.literal_eval(default)
        text = re.sub(r"`(\w+)`", lambda named: _flag(named[1]) if named[1] in names else named[0], texts[argument.arg])
        flags = [_flag(argument.arg)] if value is False else []
        made = typer.Argument(help=text) if default is None else typer.Option(*flags, help=text)
        kind: Any = Annotated[option_type(ast.unparse(argument.annotation)), made]
        yield inspect.Parameter(argument.arg, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def option_type(annotation: str) -> Any:  # noqa: ANN401
    """Returns the type of an option for a parameter with this annotation."""
    alternatives = [each.strip() for each in annotation.split("|")]
    kind = next((kind for name, kind in _TYPES.items() if name in alternatives), str)
    return kind | None if "None" in alternatives else kind


def argument_texts(docstring: str) -> dict[str, str]:
    """Returns the text of each argument under `Args:`, as one line that begins with a capital."""
    _, _, part = docstring.partition("Args:\n")
    listed = re.match(r"(?:    .*\n?)*", part)
    assert listed is not None
    entries = re.findall(r"^    (\w[\w, ]*): (.*(?:\n     .*)*)", listed[0], re.MULTILINE)
    lines = {names: " ".join(text.split()) for names, text in entries}
    return {name: line[:1].upper() + line[1:] for names, line in lines.items() for name in names.split(", ")}
