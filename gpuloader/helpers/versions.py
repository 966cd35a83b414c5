"""The versions of the decoders, for errors."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_DRIVER = Path("/sys/module/nvidia/version")
_DISTRIBUTIONS = {
    "DALI": ("nvidia-dali-cuda120", "nvidia-dali-cuda130"),
    "nvImageCodec": ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"),
}


def decoder_versions() -> dict[str, str]:
    """The versions of NVIDIA's driver, DALI and nvImageCodec; "none" for what is missing."""
    versions = {"driver": _DRIVER.read_text().strip() if _DRIVER.exists() else "none"}
    return versions | {name: _installed(names) for name, names in _DISTRIBUTIONS.items()}


def describe_decoder_versions() -> str:
    """The same as text, for an error."""
    return ", ".join(f"{name} {version}" for name, version in decoder_versions().items())


def _installed(distributions: tuple[str, ...]) -> str:
    for name in distributions:
        with suppress(PackageNotFoundError):
            return version(name)
    return "none"
