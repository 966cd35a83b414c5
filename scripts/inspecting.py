"""Checks wheels and an sdist of gpuloader: what must be in them, and what must not; see scripts/wheels."""

from __future__ import annotations

import argparse
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path

KERNELS = "gpuloader/pipelines/kernels"
MACHINES = {"x86_64": 62, "aarch64": 183}  # as ELF numbers them
NEWEST_GLIBC = (2, 28)
NEEDED = {"libc.so.6", "libm.so.6"}
NOT_INSTALLED = re.compile(r"__pycache__/|\.[ch]$|^gpuloader/configs/train/")


def read_archive(path: Path) -> dict[str, bytes]:
    """The files of a wheel or an sdist by their names; an sdist's within its folder."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    with tarfile.open(path) as sdist:
        members = [(member.name.partition("/")[2], sdist.extractfile(member)) for member in sdist if member.isfile()]
        return {name: file.read() for name, file in members if file}


def list_files(checkout: Path) -> set[str]:
    """All files of the package in a checkout, as a wheel names them."""
    walked = os.walk(checkout / "gpuloader", followlinks=True)
    return {Path(folder, name).relative_to(checkout).as_posix() for folder, _, names in walked for name in names}


def find_wheel_faults(name: str, files: Mapping[str, bytes], checkout: Path) -> Iterator[str]:
    """What a wheel of this name lacks, has too much of, or has wrong."""
    expected = {file for file in list_files(checkout) if not NOT_INSTALLED.search(file)} | {f"{KERNELS}/kernels.so"}
    information = {file for file in files if file.partition("/")[0].endswith(".dist-info")}
    yield from (f"lacks {file}" for file in sorted(expected - set(files)))
    yield from (f"has {file}, which does not belong there" for file in sorted(set(files) - expected - information))
    [license_file] = [file for file in information if file.endswith("/LICENSE")] or [""]
    if files.get(license_file) != (checkout / "LICENSE").read_bytes():
        yield "does not have the checkout's LICENSE"
    [wheel_file] = [file for file in information if file.endswith("/WHEEL")]
    tag = "-".join(name.removesuffix(".whl").split("-")[-3:])
    if HeaderParser().parsestr(files[wheel_file].decode()).get_all("Tag") != [tag]:
        yield f"has other tags inside than {tag}"
    machine = next(machine for machine in MACHINES if tag.endswith(machine))
    yield from find_library_faults(files.get(f"{KERNELS}/kernels.so", b""), machine)


def find_library_faults(library: bytes, machine: str) -> Iterator[str]:
    """Why a shared library would not load on such a machine with the oldest glibc that a wheel promises.

    The names of versions and of libraries are read from its table of strings, whichever symbols they belong to.
    """
    if library[:4] != b"\x7fELF" or int.from_bytes(library[18:20], "little") != MACHINES[machine]:
        yield f"kernels.so is not for {machine}"
    for version in sorted({found.decode() for found in re.findall(rb"\0GLIBC_([\w.]+)(?=\0)", library)}):
        numbers = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", version)
        if not numbers or (int(numbers[1]), int(numbers[2])) > NEWEST_GLIBC:
            yield f"kernels.so needs GLIBC_{version}, which is newer than {'.'.join(map(str, NEWEST_GLIBC))}"
    needed = {found.decode() for found in re.findall(rb"\0([\w.+-]+\.so\.\d+)(?=\0)", library)}
    yield from (f"kernels.so needs {each}" for each in sorted(needed - NEEDED))


def find_paths(files: Mapping[str, bytes], paths: Sequence[str]) -> Iterator[str]:
    """Files that contain the paths where they were built."""
    for name, content in sorted(files.items()):
        yield from (f"{name} says {path}" for path in paths if path.encode() in content)


def find_faults(archive: Path, checkout: Path, built_in: Sequence[str]) -> list[str]:
    """All faults of a wheel or an sdist, each a sentence without its subject."""
    files = read_archive(archive)
    faults = list(find_paths(files, built_in))
    if archive.suffix == ".whl":
        return [*faults, *find_wheel_faults(archive.name, files, checkout)]
    return [*faults, *(f"has {name}, which was built" for name in sorted(files) if name.endswith((".so", ".pyc")))]


def main() -> None:
    """One line for each archive; the exit code is 1 where one has a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="+", type=Path)
    parser.add_argument("--checkout", required=True, type=Path, help="what they were built from")
    parser.add_argument("--built-in", nargs="+", default=[], help="folders that no file in them may name")
    arguments = parser.parse_args()
    faulty = False
    for archive in arguments.archives:
        faults = find_faults(archive, arguments.checkout, arguments.built_in)
        faulty |= bool(faults)
        print(f"{archive.name}: {'; '.join(faults) or 'nothing is missing, nothing is too much'}")
    raise SystemExit(faulty)


if __name__ == "__main__":
    main()
