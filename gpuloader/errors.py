"""Every error that the library raises on purpose; all are a `GPULoaderError`, and those about the data a `DataError`.

Where Python has an error of that meaning, such as ValueError, theirs is one of this, too. The message of each says what
was wrong, what was found, what is allowed and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuloader.helpers.text import as_message, shorten

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
"""In each cause about a component, behind its extension."""


def describe(value: object, most_characters: int = 80) -> str:
    """A value for a message: its `repr`, shortened. Also for values without one, such as numbers of 5,000 digits."""
    try:
        return shorten(repr(value), most_characters)
    except (ValueError, RecursionError):  # Python writes no such numbers, and no such depths
        return f"a {type(value).__name__} too large to show"


class GPULoaderError(Exception):
    """The base class: `except GPULoaderError` catches every error that the library raises on purpose.

    Each argument is a line of the message. The text is always safe to print, and has at most 4,000 characters, whatever
    it quotes: long lines keep their beginning and their end. Attributes have all of it.

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
    """The device is not on this machine, cannot be used in this process, cannot decode, or has no memory left."""


class InstallationError(GPULoaderError, ImportError):
    """DALI is missing or installed twice; or the CPU's compiled kernels are missing or older than their sources."""


class StateError(GPULoaderError, ValueError):
    """A state that belongs to another dataset, recipe, seed or version."""


class LoaderError(GPULoaderError, RuntimeError):
    """The loader is closed or in use by another thread, or an older iterator was used after a newer one was started."""


class DataError(GPULoaderError):
    """A problem in the shards."""


class ShardNotFoundError(DataError, FileNotFoundError):
    """No shard under a path, URL, glob or pattern."""


class RemoteError(DataError):
    """A store does not deliver what was asked for.

    Attributes:
        url: the object, without credentials.
        problem: what happened, in the last try.
        tries: how often it was tried.
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
    """Bytes that are not a plain tar.

    Attributes:
        shard: path of the shard.
        offset: byte offset in the shard at which reading it stopped.
    """

    def __init__(self, shard: str, offset: int, problem: str) -> None:
        super().__init__(shard, offset, problem)
        self.shard = shard
        self.offset = offset
        self.problem = problem

    def _lines(self) -> Sequence[object]:
        return [f"{self.shard}: {self.problem} at byte {self.offset}"]


class IndexFileError(DataError):
    """An index file that cannot be used: damaged, of another version or of another state of the shard."""


class ShardChangedError(DataError):
    """A shard's size, time or content has changed since it was indexed."""


class NoSamplesError(DataError):
    """Shards in which no usable sample was found."""


class LabelError(DataError):
    """A sample without the label that `label_from` asks for."""


class PackError(DataError):
    """A source of pictures is missing or cannot be read, or packing cannot continue."""


def kind_of(cause: str) -> str:
    """Says what is bad for this cause: the image, or a component of its sample."""
    return "bad sample" if BESIDE in cause else "bad image"


class BadImageError(DataError):
    """An image that cannot be decoded, or whose sample has a field that cannot be parsed.

    Attributes:
        shard: path of the shard.
        key: the sample's key, as WebDataset names it.
        offset: byte offset of the image in the shard.
        cause: why it cannot be decoded or parsed.
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
