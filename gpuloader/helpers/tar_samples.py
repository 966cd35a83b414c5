"""Writes samples into a tar, as WebDataset names them."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from io import BytesIO


def write_sample(tar: tarfile.TarFile, key: str, components: Mapping[str, bytes]) -> None:
    """Adds the members KEY.EXTENSION, sorted. The bytes depend on nothing else: times, users and modes are fixed."""
    for extension, data in sorted(components.items()):
        member = tarfile.TarInfo(f"{key}.{extension}")
        member.size, member.mode = len(data), 0o444
        tar.addfile(member, BytesIO(data))
