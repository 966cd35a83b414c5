"""The versions of the decoders, for errors."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DALI_BUILDS = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")
"""DALI's distributions, one for each major version of CUDA."""
NVIMGCODEC_BUILDS = ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")
DRIVER_FILE = Path("/sys/module/nvidia/version")


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """The version of each distribution that is installed, by name."""
    found = {}
    for name in distributions:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def decoder_versions() -> dict[str, str]:
    """The versions of NVIDIA's driver, DALI and nvImageCodec; "none" for what is missing."""
    versions = {"driver": DRIVER_FILE.read_text().strip() if DRIVER_FILE.exists() else "none"}
    for name, builds in (("DALI", DALI_BUILDS), ("nvImageCodec", NVIMGCODEC_BUILDS)):
        versions[name] = next(iter(installed_versions(builds).values()), "none")
    return versions


def describe_decoder_versions() -> str:
    """The same as text, for an error."""
    return ", ".join(f"{name} {version}" for name, version in decoder_versions().items())
