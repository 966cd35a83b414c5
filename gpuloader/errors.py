"""The errors that the library raises on purpose: each is a `GPULoaderError`, and errors in the data are a `DataError`.

`except ValueError` and the like also work: an error inherits from Python's error of the same meaning, if there is one.
A message says what is wrong, what was found, what is allowed and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuloader.base.text import as_message, shorten

__all__ = [
    "BadImageError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "GPULoaderError",
    "IndexFileError",
    "InstallationError",
    "LabelError",
    "LoaderError",
    "NoSamplesError",
    "PackError",
    "PresetError",
    "RemoteError",
    "ShardChangedError",
    "ShardNotFoundError",
    "StateError",
    "TarError",
    "TooManyBadImagesError",
]


BESIDE = " component beside it: "
"""Text in each cause about a component, after its extension."""


def describe(value: object, most_characters: int = 80) -> str:
    """Returns a value's `repr` for a message, shortened; works for any value, such as a number of 5,000 digits."""
    try:
        return shorten(repr(value), most_characters)
    except (ValueError, RecursionError):  # Python refuses such long numbers and such deep nesting
        return f"a {type(value).__name__} too large to show"


class GPULoaderError(Exception):
    """The base class: `except GPULoaderError` catches every error that the library raises on purpose.

    Each argument is a line of the message. The text is safe to print and has at most 4,000 characters: long lines are
    shortened in the middle. Attributes have the full values.

    Example:
        >>> from gpuloader import GPULoader, GPULoaderError
        >>> try:
        ...     GPULoader("shards/", 8, "cpu", preset="imagenet_trian")
        ... except GPULoaderError as error:
        ...     print(type(error).__name__, str(error)[:70])
        PresetError no preset is called 'imagenet_trian' (did you mean imagenet_train?): t
    """

    def __str__(self) -> str:
        return as_message(self._lines())

    def _lines(self) -> Sequence[object]:
        return self.args


class ConfigError(GPULoaderError, ValueError):
    """An invalid argument."""


class PresetError(ConfigError):
    """A recipe with an unknown key, a wrong type or a value out of range."""


class DeviceError(GPULoaderError, RuntimeError):
    """A device that is missing, out of memory, unable to decode, or not usable in this process."""


class InstallationError(GPULoaderError, ImportError):
    """A broken installation: DALI is missing or installed twice, or the compiled kernels are missing or outdated."""


class StateError(GPULoaderError, ValueError):
    """A saved state of another dataset, recipe, seed or version."""


class LoaderError(GPULoaderError, RuntimeError):
    """A loader that is closed or in use by another thread, or an iterator that a newer one replaced."""


class DataError(GPULoaderError):
    """A problem in the shards."""


class ShardNotFoundError(DataError, FileNotFoundError):
    """No shard under a path, URL, glob or pattern."""


class RemoteError(DataError):
    """A failed download, or another failed request to a store.

    Attributes:
        url: the object, without credentials.
        problem: what happened in the last try.
        tries: the number of tries.
    """

    def __init__(self, url: str, problem: str, tries: int) -> None:
        super().__init__(url, problem, tries)
        self.url = url
        self.problem = problem
        self.tries = tries

    def _lines(self) -> Sequence[object]:
        tries = "1 try" if self.tries == 1 else f"{self.tries} tries"
        return [
            f"{self.url}: {self.problem} ({tries}). Check the URL, the credentials and the network. Nothing is lost: "
            f"what was downloaded is kept. To resume, loop again, or load the state into a new loader"
        ]


class TarError(DataError):
    """A shard that is not a plain tar.

    Attributes:
        shard: path of the shard.
        offset: byte offset in the shard where reading stopped.
    """

    def __init__(self, shard: str, offset: int, problem: str) -> None:
        super().__init__(shard, offset, problem)
        self.shard = shard
        self.offset = offset
        self.problem = problem

    def _lines(self) -> Sequence[object]:
        return [f"{self.shard}: {self.problem} at byte {self.offset}"]


class IndexFileError(DataError):
    """An index file that is damaged, of another version, or older than its shard."""


class ShardChangedError(DataError):
    """A shard whose size, time or content changed after it was indexed."""


class NoSamplesError(DataError):
    """Shards without a usable sample."""


class LabelError(DataError):
    """A sample without the label that `label_from` asks for."""


class PackError(DataError):
    """A source that packing cannot find or read, or another reason why packing stops."""


def kind_of(cause: str) -> str:
    """Returns "bad sample" if the cause is about a component beside the image, otherwise "bad image"."""
    return "bad sample" if BESIDE in cause else "bad image"


class BadImageError(DataError):
    """A sample whose image cannot be decoded, or with a field that cannot be parsed.

    Attributes:
        shard: path of the shard.
        key: the sample's key, as WebDataset names it.
        offset: byte offset of the image in the shard.
        cause: why decoding or parsing fails.
    """

    def __init__(self, shard: str, key: str, offset: int, cause: str) -> None:
        super().__init__(shard, key, offset, cause)
        self.shard = shard
        self.key = key
        self.offset = offset
        self.cause = cause

    def _lines(self) -> Sequence[object]:
        return (
            f"{kind_of(self.cause)}: {self.cause}",
            f"  shard  {self.shard}",
            f"  key    {self.key}",
            f"  offset {self.offset}",
            'Repair or remove the sample, or go on without it: on_error="replace" to train, "skip" to evaluate.',
        )


class TooManyBadImagesError(DataError):
    """More bad images than `BadImages(max_share=...)` allows."""
