"""What parsers do with mutants: of tars, index files, and annotations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from forging import parts_of, sealed

from fuzzing.annotations import takes_annotations
from gpuloader.errors import DataError
from gpuloader.shards import Index
from gpuloader.shards.scan import scan_bytes


def examine(kind: str, mutants: Sequence[bytes]) -> Counter[str]:
    """Parses each mutant, and uses what comes out; counts outcomes."""
    accepted = sum(map(_TAKES[kind], mutants))
    return Counter(refused=len(mutants) - accepted, accepted=accepted)


def scanned(tar: bytes) -> Index:
    """The index of a tar in memory."""
    return scan_bytes(lambda size, place: tar[place : place + size], len(tar), 0, "a.tar")


def _takes_tar(data: bytes) -> bool:
    try:
        index = scanned(data)
    except DataError:
        return False
    _use(index, len(data))
    return True


def _takes_index(data: bytes) -> bool:
    try:
        index = Index.parse_one(sealed(parts_of(data)), "a.gpuidx")
        _use(index, index.shard_bytes.item(0))
    except DataError:  # a column is checked when it is used
        return False
    return True


def _use(index: Index, size_bytes: int) -> None:
    """All that the library asks an index; it may not reach outside the shard."""
    keys = list(index.each_key())
    assert [index.key(row) for row in range(len(index))] == keys, "keys differ"
    places = [index.component(row, extension) for row in range(len(index)) for extension in index.extensions]
    places += zip(index.column("image_offset").tolist(), index.column("image_size").tolist(), strict=True)
    assert all(place is None or 0 <= place[0] <= sum(place) <= size_bytes for place in places), "outside the shard"
    assert len(index.image_extensions()) == len(keys), "other lengths"
    index.digest()
    Index.parse_one(index.to_bytes(), "a.gpuidx")


_TAKES: Mapping[str, Callable[[bytes], bool]] = {
    "tar": _takes_tar,
    "index": _takes_index,
    "annotations": takes_annotations,
}
