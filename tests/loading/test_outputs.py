"""`output`: names in a tuple, and a function that makes the batch. Order, pixels and state stay as they are."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from loaders import loader

from gpuloader import GPULoader, MixedLoader
from gpuloader.loading.loader import run_of

NAMES = ("index", "image", "label")


def equal(one: Any, other: Any) -> bool:  # noqa: ANN401
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.parametrize(
    "names",
    [
        ("image", "label"),  # as "tuple"
        NAMES,  # as solo-learn takes it
        ["label", "image"],  # as YAML gives it
        ("key",),  # a tuple of one
        ("image", "json"),  # a field
    ],
    ids=str,
)
def test_names_give_a_tuple_in_their_order(shards: list[Path], names: Any) -> None:  # noqa: ANN401
    fields = {"fields": ["json"]} if "json" in names else {}
    with loader(shards, output="dict", **fields) as by_name, loader(shards, output=names, **fields) as in_order:
        for expected, batch in zip(by_name, in_order, strict=True):
            assert type(batch) is tuple
            assert len(batch) == len(names)
            assert all(equal(value, expected[name]) for name, value in zip(names, batch))


def test_names_give_images_whose_sizes_differ(shards: list[Path]) -> None:
    """`output="tuple"` is refused there, as it has no sizes; names may ask for them."""
    with loader(shards, preset={"batch": "list", "transforms": ["Grayscale"]}, output=("image", "size")) as batches:
        images, sizes = next(iter(batches))
    assert [[*image.shape[1:]] for image in images] == sizes.tolist()


def test_a_function_gets_the_dictionary_and_makes_the_batch(shards: list[Path]) -> None:
    with loader(shards, output="dict") as by_name, loader(shards, output=dict.copy) as made:
        for expected, batch in zip(by_name, made, strict=True):
            assert batch.keys() == expected.keys()
            assert all(equal(batch[name], expected[name]) for name in expected)


@pytest.mark.parametrize("result", [0, False, (), torch.zeros(0)], ids=str)
def test_a_batch_that_is_false_does_not_end_the_loop(shards: list[Path], result: object) -> None:
    with loader(shards, output=lambda batch: result) as batches:
        assert len(list(batches)) == len(batches) == 5


def test_a_state_is_that_of_any_output(shards: list[Path]) -> None:
    with loader(shards) as plain, loader(shards, output=lambda batch: batch["index"]) as made:
        assert run_of(plain).identity == run_of(made).identity
        batches = iter(plain)
        next(batches)
        made.load_state_dict(plain.state_dict())
        resumed = [index.tolist() for index in made]
    with loader(shards, output="dict") as whole:
        assert resumed == [batch["index"].tolist() for batch in whole][1:]


class TodayError(Exception):
    pass


class Failing:
    """Fails at the second of its calls."""

    def __init__(self, error: Exception) -> None:
        self.error, self.calls, self.seen = error, 0, []

    def __call__(self, batch: dict[str, Any]) -> list[int]:
        self.calls += 1
        self.seen.append(batch["index"].tolist())
        if self.calls == 2:
            raise self.error
        return self.seen[-1]


def test_a_functions_error_comes_as_it_is_and_its_batch_comes_again(shards: list[Path]) -> None:
    error = TodayError("later")
    with loader(shards, output=Failing(error)) as batches, loader(shards, output="dict") as whole:
        expected = [batch["index"].tolist() for batch in whole]
        iterator = iter(batches)
        assert next(iterator) == expected[0]
        state = batches.state_dict()
        with pytest.raises(TodayError) as caught:
            next(iterator)
        assert caught.value is error
        assert batches.state_dict() == state
        assert batches.stats().batches == 1
        assert [*iterator] == expected[1:]


def test_a_stop_iteration_of_a_function_does_not_end_the_loop_silently(shards: list[Path]) -> None:
    with loader(shards, output=Failing(StopIteration())) as batches:
        iterator = iter(batches)
        next(iterator)
        with pytest.raises(RuntimeError, match="StopIteration, raised in __call__"):
            next(iterator)
        assert len([*iterator]) == 4


def test_a_function_fails_in_a_mixed_loader_as_alone(shards: list[Path]) -> None:
    with loader(shards, output=Failing(TodayError())) as one, loader(shards, output="dict") as whole:
        expected = [batch["index"].tolist() for batch in whole]
        mixed = MixedLoader({"one": one})
        iterator = iter(mixed)
        assert next(iterator) == ("one", expected[0])
        with pytest.raises(TodayError):
            next(iterator)
        assert mixed.state_dict()["step"] == 1
        assert [*iterator] == [("one", index) for index in expected[1:]]


def named(batch: dict[str, Any], name: str) -> Any:  # noqa: ANN401
    return batch[name].tolist()


def test_a_loader_with_a_function_is_pickled_as_others(shards: list[Path]) -> None:
    with loader(shards, output=partial(named, name="index")) as batches:
        again: GPULoader = pickle.loads(pickle.dumps(batches))
        with again:
            assert [*again] == [*batches]
