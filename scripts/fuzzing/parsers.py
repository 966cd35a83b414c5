"""What parsers do with mutants: of tars, index files, and annotations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from forging import parts_of, sealed, use

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
    use(index)
    return True


def _takes_index(data: bytes) -> bool:
    try:
        index = Index.parse_one(sealed(parts_of(data)), "a.gpuidx")
        use(index)
    except DataError:  # a column is checked when it is used
        return False
    return True


_TAKES: Mapping[str, Callable[[bytes], bool]] = {
    "tar": _takes_tar,
    "index": _takes_index,
    "annotations": takes_annotations,
}
