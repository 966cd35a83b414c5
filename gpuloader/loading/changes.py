"""What a state says of the sampling, and a declared change of the sampling at a resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuloader.errors import StateError, describe
from gpuloader.helpers.text import counted
from gpuloader.helpers.values import is_integer
from gpuloader.loading.state import is_same
from gpuloader.plan import (
    EPOCHS,
    Bucketed,
    Custom,
    Mixture,
    Positions,
    Remaining,
    Segment,
    Staged,
    Subset,
    Weighted,
    mixture_of,
    with_mixture,
)

_MOST_PARTS = 10**6  # a mixture has at most a tenth of it
_MOST_SHOWN = 5


def describe_sampling(positions: Positions) -> str:
    """Says in words which samples an epoch has."""
    if isinstance(positions, Remaining):
        return f"{describe_sampling(positions.positions)} without {len(positions.left_out):,} that are left out"
    if isinstance(positions, Mixture):
        ratios = ", then ".join(_ratio(segment.parts) for segment in positions.schedule[:_MOST_SHOWN])
        return f"sources in the ratio {ratios}{' ...' if len(positions.schedule) > _MOST_SHOWN else ''}"
    samples = counted(positions.samples if isinstance(positions, Bucketed) else positions.length, "sample")
    kinds: dict[type, str] = {
        Bucketed: f"buckets of {samples}",
        Custom: f"{samples} by a function",
        Staged: f"a curriculum of {samples}",
        Subset: f"a subset of {samples}",
        Weighted: f"{samples} by weight",
    }
    return kinds.get(type(positions), f"all {samples}")


def history_of(positions: Positions) -> dict[str, Any]:
    """Returns what a state keeps of a mixture, in plain JSON types: the identity of its ranges, and its segments."""
    mixture = mixture_of(positions)
    if mixture is None:
        return {}
    segments = [[segment.start, list(segment.parts)] for segment in mixture.segments]
    return {"mixture": {"sources": _identify_sources(positions, mixture), "segments": segments}}


def restore_history(positions: Positions, state: Mapping[str, Any]) -> Positions:
    """Returns the positions with the segments of a state, if it has some of the same sources.

    Raises:
        StateError: the segments are invalid.
    """
    mixture = mixture_of(positions)
    if mixture is None:
        return positions
    segments = _segments_in(state, positions, mixture)
    if segments in (None, mixture.schedule):
        return positions
    return with_mixture(positions, replace(mixture, changed=segments))


def rewrite(
    state: Mapping[str, Any], positions: Positions, identity: Mapping[str, Any], described: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str | None]:
    """Rewrites a state of another sampling into one of these positions, and says what changes; None if nothing does.

    A mixture of the same sources changes at the state's place. For other samplings, a running epoch cannot go on: the
    place becomes the beginning of the next one.
    """
    own = {"sampling": identity["sampling"], "shuffle": identity["shuffle"]}
    if _is_of(positions, state, own):
        return state, None
    epoch, delivered = state.get("epoch"), state.get("delivered")
    if not is_integer(epoch, 0, EPOCHS) or not is_integer(delivered, 0, 2**62):
        return {**state, **own}, None
    mixture = mixture_of(positions)
    if mixture is not None and (before := _segments_in(state, positions, mixture)) is not None:
        position = epoch * mixture.length + delivered
        changed = mixture.change(before, position)
        old, new = (_ratio(each.at(position).parts) for each in (replace(mixture, changed=before), changed))
        words = f"stay {new}, and change later" if old == new else f"change from {old} to {new}"
        words = f"the weights of the sources {words}, at sample {delivered:,} of epoch {epoch}"
        return {**state, **own, **history_of(with_mixture(positions, changed))}, words
    saved = state.get("described")
    saved = saved if isinstance(saved, Mapping) else {}
    if not is_same(saved.get("selected", "unknown"), described["selected"]):
        own["labels"] = identity["labels"]  # those of other samples
    earlier = saved.get("sampling")
    words = f"from {describe(earlier) if isinstance(earlier, str) else 'another'} to {described['sampling']!r}"
    if not is_same(state.get("shuffle"), positions.shuffle):
        words += f", shuffle from {describe(state.get('shuffle'))} to {positions.shuffle!r}"
    if delivered:
        words += f"; epoch {epoch} cannot go on"
    moved = {key: value for key, value in state.items() if key not in ("quantum", "mixture")}
    words = f"the sampling changes {words}: the run goes on with epoch {epoch + bool(delivered)}"
    return {**moved, **own, "epoch": epoch + bool(delivered), "delivered": 0}, words


def _is_of(positions: Positions, state: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Says whether a state is of this sampling; the quantum of buckets may be the state's."""
    quantum = state.get("quantum")
    if isinstance(positions, Bucketed) and is_integer(quantum, 1, 2**31):
        own = {**own, "sampling": replace(positions, quantum=quantum).fingerprint}
    return all(is_same(state.get(name), value) for name, value in own.items())


def _identify_sources(positions: Positions, mixture: Mixture) -> str:
    """Returns what must be equal for passes to go on: the fingerprint of the same sources in equal parts."""
    return with_mixture(positions, Mixture.of(mixture.sizes, [1] * len(mixture.sizes), mixture.shuffle)).fingerprint


def _segments_in(state: Mapping[str, Any], positions: Positions, mixture: Mixture) -> tuple[Segment, ...] | None:
    """Returns a state's segments; None if it has none of the same sources."""
    saved = state.get("mixture")
    if not isinstance(saved, Mapping) or not is_same(saved.get("sources"), _identify_sources(positions, mixture)):
        return None
    listed = saved.get("segments")
    if not isinstance(listed, (list, tuple)) or not all(_is_segment(each, len(mixture.sizes)) for each in listed):
        raise StateError(
            f"the state's mixture has the segments {describe(listed)}: allowed are [position, parts] with a part for "
            f"each source"
        )
    starts = [start for start, _ in listed]
    if starts[:1] != [0] or sorted(set(starts)) != starts:
        raise StateError(f"the state's mixture has segments at {describe(starts)}: allowed are 0 and then larger ones")
    return tuple(Segment(start, tuple(parts), mixture.sizes) for start, parts in listed)


def _is_segment(segment: object, sources: int) -> bool:
    if not isinstance(segment, (list, tuple)) or len(segment) != 2:
        return False
    start, parts = segment
    return (
        is_integer(start, 0)
        and isinstance(parts, (list, tuple))
        and len(parts) == sources
        and all(is_integer(part, 0) for part in parts)
        and 0 < sum(parts) < _MOST_PARTS
    )


def _ratio(parts: Sequence[int]) -> str:
    return ":".join(map(str, parts))
