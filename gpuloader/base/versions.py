"""Finds the versions of the decoders, for errors, reports and cached results."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DALI_BUILDS = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")
"""DALI's distributions, one for each major version of CUDA."""
DECODERS = {
    "DALI": DALI_BUILDS,
    "nvImageCodec": ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"),
    "nvJPEG": ("nvidia-nvjpeg-cu12", "nvidia-nvjpeg"),
    "nvTIFF": ("nvidia-nvtiff-cu12", "nvidia-nvtiff-cu13"),
}
"""The decoders, with their distributions for CUDA 12 and 13. nvImageCodec allows many versions of nvJPEG and nvTIFF."""
DRIVER_FILE = Path("/sys/module/nvidia/version")


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Returns the version of each distribution that is installed, by name."""
    versions = {}
    for name in distributions:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def decoder_versions() -> dict[str, str]:
    """Returns the versions of the driver and of `DECODERS`: "none" if missing, both if there are two builds."""
    versions = {"driver": DRIVER_FILE.read_text().strip() if DRIVER_FILE.exists() else "none"}
    for name, builds in DECODERS.items():
        versions[name] = " and ".join(installed_versions(builds).values()) or "none"
    return versions


def describe_decoder_versions() -> str:
    """Returns `decoder_versions` as text, for an error."""
    return ", ".join(f"{name} {version}" for name, version in decoder_versions().items())
