"""The state of a loader: checks that it belongs to a run, and names the differences."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.text import counted
from gpuloader.base.values import is_integer
from gpuloader.errors import StateError, describe
from gpuloader.plan import EPOCHS, Cursor
from gpuloader.recipe import Recipe
from gpuloader.shards import ShardSet

LeftOut: TypeAlias = tuple[Cursor, NDArray[np.int64]]
"""Samples, (n,) sorted, that are left out, and the place from which on they are."""
STATE_VERSION = 1
_DIGITS = 4
_MOST_RUNS = 256
_MOST_SHOWN = 5
_ABSENT = object()
_EPOCH = re.compile(r"[0-9]{1,10}")  # a key of values by epoch
_PLAIN = (str, int, float, type(None))


def describe_run(recipe: Recipe, shards: ShardSet) -> dict[str, Any]:
    """Returns the details with which `check_identity` names differences: the recipe, and digits of shard digests."""
    run = 1
    while len(shards.shards) > run * _MOST_RUNS:
        run *= 2
    return {
        "recipe": json.loads(json.dumps(recipe.pixels)),
        "shards": {"count": len(shards.shards), "run": run, "digests": "".join(_digits(shards, run))},
    }


def _digits(shards: ShardSet, run: int) -> list[str]:
    """Returns the last digits of the digest of each `run` consecutive shards."""
    return [str(digest)[-_DIGITS:] for digest in shards.digests_of_runs(run)]


def check_identity(
    state: Mapping[str, Any], identity: Mapping[str, Any], described: Mapping[str, Any], shards: ShardSet
) -> None:
    """Checks that a state belongs to the run with this identity and description.

    Raises:
        StateError: it is not a state, or a state of another run. The message names the transform, shard or argument
            that differs.
    """
    # A state that was saved without the recipe's `oversampling` has no digest of mipmaps; then the recipe differs.
    if missing := sorted({*identity, "epoch", "begin", "delivered", "quarantine"} - {*state, "mipmaps"}):
        raise StateError(f"this is not a state of a GPULoader: it lacks {', '.join(missing)}")
    for name in identity:
        if problem := _problem(name, state, identity, described, shards):
            raise StateError(
                f"{problem}. Make the loader as it was when the state was saved, or start without the state"
            )


def _problem(
    name: str, state: Mapping[str, Any], identity: Mapping[str, Any], described: Mapping[str, Any], shards: ShardSet
) -> str:
    """Returns how a part of the identity differs from the state's; empty if it may be so."""
    before, mine = state.get(name), identity[name]
    if is_same(before, mine) or (name == "labels" and (mine is None or before is None)):
        return ""
    saved: Any = state.get("described")
    saved = saved if isinstance(saved, Mapping) else {}
    if name == "recipe" and isinstance(saved.get("recipe"), Mapping):
        begun, both = _begun_epochs(state), (saved["recipe"], described["recipe"])
        if of_all_epochs := _differences(*both):
            return _recipe_problem(_differences(*both, epochs=begun), of_all_epochs, begun)
    difference = _shard_difference(saved.get("shards"), shards)
    if name == "dataset" and difference:
        return f"the state was saved with other data: {difference}"
    if name in ("sampling", "shuffle"):
        if differences := _differences(saved.get("sampling"), described["sampling"], "it"):
            return f"the state was saved with another sampling: {_list(differences, '; ')}"
        if difference and identity["shuffle"] == "shards" and not is_same(saved["shards"], described["shards"]):
            other = "other shards of the same samples, and shuffle='shards' depends on them"
            return f"the state was saved with {other}: {difference}"
    if name == "labels":
        return (
            f"the state was saved with other labels ({describe(before)}, here {mine!r}): a .cls, a folder's name, or "
            f"the order of the classes differs. If new folders of classes changed the numbers of others, name them "
            f"last in LabelFrom(..., classes=[...])"
        )
    if name == "mipmaps":
        return (
            "the state was saved with other smaller copies beside the same pictures, and the recipe's `oversampling` "
            "uses such copies: use the original shards, or pack with the same --mipmaps"
        )
    return f"the state has {name}={describe(before)}, this loader has {name}={mine!r}"


def _recipe_problem(differences: Sequence[str], of_all_epochs: Sequence[str], begun: int) -> str:
    """Returns how two recipes differ in the epochs that have begun; empty if they differ only in later ones."""
    if not differences:
        return ""
    problem = f"the state was saved with another recipe: {_list(differences, '; ')}"
    if differences != of_all_epochs or any(re.search(r"\.\d+ was ", each) for each in differences):
        problem += f". Values by epoch may change from epoch {begun} on"
    return problem


def is_same(saved: object, mine: object) -> bool:
    """Returns whether a value of a state, of any type, equals a loader's value, of plain JSON types."""
    return not _differences(saved, mine)


def check_place(state: Mapping[str, Any], unit: str, most: Callable[[int], int]) -> tuple[int, int]:
    """Returns the epoch of a state, and its progress in the entry `unit`; raises StateError if they are invalid.

    The end of the last epoch is valid, although no batch follows.

    Args:
        most: returns the length of an epoch in this unit.
    """
    epoch, done = state["epoch"], state[unit]
    if not is_integer(epoch, 0, EPOCHS + 1):
        raise StateError(f"the state's epoch is {describe(epoch)}: allowed is an integer in [0, 2**32]")
    end = most(epoch) if epoch < EPOCHS else 0
    if not is_integer(done, 0, end + 1):
        raise StateError(f"the state has {unit}={describe(done)} in epoch {epoch}: allowed is an integer in [0, {end}]")
    return epoch, done


def check_quarantine(entries: Any, samples: int) -> dict[int, str]:  # noqa: ANN401
    """Returns the bad images in a state, sample id -> cause; raises StateError if they are invalid."""
    pairs: Sequence[Any] = entries if isinstance(entries, (list, tuple)) else [None]
    if not all(
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and is_integer(pair[0], 0, samples)
        and isinstance(pair[1], str)
        for pair in pairs
    ):
        raise StateError(f"the state's quarantine is not a list of [sample, cause] with samples among the {samples}")
    return dict(pairs)


def check_left_out(entries: object, samples: int) -> tuple[LeftOut, ...]:
    """Returns the samples that a state leaves out, and from where on; raises StateError if they are invalid."""
    if not isinstance(entries, (list, tuple)) or not all(_is_left_out(entry, samples) for entry in entries):
        raise StateError(
            f"the state's left_out is {describe(entries)}: allowed is a list of [epoch, delivered, samples], with "
            f"lists of samples among the {samples}"
        )
    return tuple((Cursor(epoch, delivered), np.unique(np.array(ids, np.int64))) for epoch, delivered, ids in entries)


def _is_left_out(entry: object, samples: int) -> bool:
    if not isinstance(entry, (list, tuple)) or len(entry) != 3 or not isinstance(entry[2], (list, tuple)):
        return False
    epoch, delivered, ids = entry
    is_place = is_integer(epoch, 0, EPOCHS + 1) and is_integer(delivered, 0)
    return is_place and all(is_integer(sample, 0, samples) for sample in ids)


def _begun_epochs(state: Mapping[str, Any]) -> int:
    """Returns the number of epochs that have begun at a state's position; values by epoch are fixed up to there."""
    epoch = state["epoch"] if is_integer(state["epoch"], 0, EPOCHS + 1) else EPOCHS
    return max(1, epoch + (not is_same(state["delivered"], 0)))


def _in_epochs(value: object, count: int) -> object:
    """Returns a value for the first `count` epochs: of values by epoch, the entries that have begun."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and _EPOCH.fullmatch(key) for key in value):
        return value
    begun = {key: each for key, each in value.items() if int(key) < count}
    return begun["0"] if [*begun] == ["0"] else begun


def _differences(saved: object, mine: object, where: str = "", epochs: int | None = None) -> list[str]:
    """Returns a sentence for each difference between two trees of values; the second has plain JSON types.

    Args:
        epochs: compares values by epoch only in the first epochs.
    """
    if epochs is not None:
        saved, mine = _in_epochs(saved, epochs), _in_epochs(mine, epochs)
    if isinstance(saved, Mapping) and isinstance(mine, Mapping):
        pairs = [
            (f"{where}.{_name(key)}" if where else _name(key), saved.get(key, _ABSENT), mine.get(key, _ABSENT))
            for key in {**saved, **mine}
        ]
    elif isinstance(saved, list) and isinstance(mine, list):
        both = zip_longest(saved, mine, fillvalue=_ABSENT)
        pairs = [(f"{where}[{number}]", before, now) for number, (before, now) in enumerate(both)]
    elif isinstance(saved, _PLAIN) and isinstance(mine, _PLAIN) and saved == mine:  # NumPy compares element by element
        return []
    else:
        return [f"{where} was {_quote(saved)}, is {_quote(mine)}"]
    return [sentence for name, before, now in pairs for sentence in _differences(before, now, name, epochs)]


def _name(key: object) -> str:
    return key[:80] if isinstance(key, str) else describe(key)


def _quote(value: object) -> str:
    return "absent" if value is _ABSENT else describe(value, 200)


def _shard_difference(saved: object, shards: ShardSet) -> str | None:
    """Returns a text that names the first shard that differs from the state; None if the state has no shards."""
    if not isinstance(saved, Mapping):
        return None
    count, run, digests = saved.get("count"), saved.get("run"), saved.get("digests")
    if not (is_integer(count, 1, 2**62) and is_integer(run, 1, 2**62) and isinstance(digests, str)):
        return None
    before = [digests[start : start + _DIGITS] for start in range(0, len(digests), _DIGITS)]
    both = enumerate(zip_longest(before, _digits(shards, run)))
    first = next((number * run for number, (was, here) in both if was != here), None)
    total = len(shards.shards)
    lengths = f"it had {counted(count, 'shard')}, this loader has {total}"
    if first is None:
        return f"{lengths}; other samples"
    last = min(first + run, max(count, total)) - 1
    which = f"shard {first}" if last == first else f"among the shards {first} to {last}"
    here = f"; here that is {shards.shards[first]}" if first < total else ""
    return f"{lengths}; the first that differs is {which}, counted from 0{here}"


def _list(parts: Sequence[str], separator: str = ", ") -> str:
    return f"{separator.join(parts[:_MOST_SHOWN])}{' ...' if len(parts) > _MOST_SHOWN else ''}"
