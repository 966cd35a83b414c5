"""The exception tree."""

import pickle
import re

import pytest

from gpuloader import errors

TREE = {name: thing for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)}


def test_the_docstring_draws_the_tree_as_it_is() -> None:
    # Each line of the drawing: the branch's depth, the name, and the built-in error it also is.
    drawn, path = {}, []
    for line in errors.__doc__.splitlines():
        if match := re.match(r"^    ([│├└─ ]*)(\w+Error)(?: \((\w+)\))?", line):
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            drawn[match[2]] = (path[depth - 1] if depth else "Exception", match[3])
    actual = {
        name: (error.__bases__[0].__name__, error.__bases__[1].__name__ if len(error.__bases__) > 1 else None)
        for name, error in TREE.items()
    }
    assert drawn == actual


def test_every_error_is_public_and_one_of_ours() -> None:
    assert set(TREE) == set(errors.__all__)
    assert all(issubclass(error, errors.GPULoaderError) for error in TREE.values())


@pytest.mark.parametrize(
    "error",
    [
        errors.BadImageError("a.tar", "k", 512, "cut"),
        errors.TarError("a.tar", 7, "cut"),
        errors.StateError("x"),
        errors.RemoteError("s3://a", "HTTP 500", 5),
    ],
)
def test_errors_survive_pickling_as_they_cross_processes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
