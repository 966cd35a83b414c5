"""The exception tree."""

import pickle

import pytest

from gpuloader import errors

TREE = {name: thing for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)}


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
