"""Options that are parameters of a tool: what is written at its function is what a command has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from command_line import run

from gpuloader.cli.signatures import argument_texts, option_type
from gpuloader.pack import pack


def test_pack_has_the_options_of_its_function_with_their_texts() -> None:
    printed = " ".join(re.sub(r"[│╭╮╰╯─]", " ", run("pack", "--help", COLUMNS="400").stdout).split())
    texts = argument_texts(inspect.getdoc(pack) or "")
    for name, parameter in inspect.signature(pack).parameters.items():
        if name in ("source", "destination", "part", "progress"):
            continue
        assert f"--{name.replace('_', '-')} " in printed
        if parameter.default not in (None, False, True):
            assert f"[default: {parameter.default}]" in printed
        assert texts[name].split("`")[0].strip() in printed
    assert "1000 unless --shard-bytes is given." in printed  # a parameter's name is the option's


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        ("int | None", int | None),
        ("float", float),
        ("str | Path | None", str | None),
        ("int | str | None", str | None),
        ("PictureSource", str),
        ("Path", Path),
    ],
)
def test_an_option_takes_what_the_parameter_takes(annotation: str, kind: object) -> None:
    assert option_type(annotation) == kind


def test_texts_are_those_under_args_alone() -> None:
    docstring = (
        "Does it.\n\nArgs:\n    a, b: what they\n        are, such as: this.\n    c: `a` again.\n\nRaises:\n    d: no."
    )
    assert argument_texts(docstring) == {
        "a": "What they are, such as: this.",
        "b": "What they are, such as: this.",
        "c": "`a` again.",
    }
