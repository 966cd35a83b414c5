"""Resolves the `tar` argument to a list of shards."""

from __future__ import annotations

import glob
import logging
import os
import re
import shlex
import stat
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from gpuloader.base.text import counted, similar
from gpuloader.errors import ConfigError, DataError, GPULoaderError, ShardNotFoundError, describe
from gpuloader.shards.braces import expand_braces
from gpuloader.shards.folder import Folder
from gpuloader.shards.index_files import INDEX_SUFFIX, LocalShard
from gpuloader.shards.merged import MERGED_FILE, MERGED_SUFFIX, MergedShards, has_merged, open_merged
from gpuloader.shards.pictures import in_hidden_folder, is_picture, only_for_pack
from gpuloader.shards.remote.store import RemoteShard, list_shards
from gpuloader.shards.remote.urls import remote_protocol, without_secrets
from gpuloader.shards.splits import SPLITS, check_one_split

Tar: TypeAlias = Iterable[str | os.PathLike[str]] | os.PathLike[str] | str
"""A file, a folder of `*.tar` or of pictures, a glob, a brace pattern (`train-{0000..0147}.tar`), or a list of these.
Or URLs."""

Shard: TypeAlias = Path | Folder | RemoteShard

_OTHER_ARCHIVE = re.compile(r"[^.].*\.(tar|tar\.(gz|bz2|xz|zst)|tgz|tbz2?|txz|tzst|zip)", re.IGNORECASE)
_NO_SHARD = "which is no shard: unpack compressed archives, and call tars NAME.tar"
_log = logging.getLogger("gpuloader")


def resolve_shards(tar: Tar, mixed: bool = False) -> Sequence[Shard]:
    """Returns the shards in order: as listed, in the order of the braces, and by name within a folder or glob.

    A merged index, or a folder with one, stands for its shards; as the only entry it gives `MergedShards`.

    Args:
        mixed: whether the shards of a folder may be of several splits, see `check_one_split`.

    Raises:
        ShardNotFoundError: there is no such shard. The message says what to do.
        ConfigError: a URL or a pattern is invalid, a shard is named twice, or a folder has several splits.
        RemoteError: a store cannot list objects.
        DataError: a folder may not be read, or the system refuses a path.
        IndexFileError: a merged index is damaged, or its names differ from the shards.
    """
    advice = _advice_on_dataset(tar)  # before it is iterated, which may read all of its images
    alone = advice or isinstance(tar, (str, os.PathLike)) or not isinstance(tar, Iterable)
    sources: list[Any] = [tar] if alone else list(tar)  # type: ignore[arg-type]
    if wrong := [source for source in sources if not isinstance(source, (str, os.PathLike))]:
        raise ConfigError(
            f"tar={describe(tar)}: allowed is a path, a URL, a folder, a pattern, or a list of these"
            f"{advice or _advice_on_dataset(wrong[0])}"
        )
    found = [_find(os.fspath(source), mixed) for source in sources]
    if len(found) == 1 and isinstance(found[0], MergedShards):
        return found[0]
    shards = list(chain(*found))
    if not shards:
        raise ShardNotFoundError(f"tar={tar!r} names no shard")
    if pictures := [shard for shard in shards if isinstance(shard, Path) and is_picture(shard.name)]:
        _refuse_pictures(f"{pictures[0]} is a picture, not a tar", {picture.parent for picture in pictures})
    seen: set[object] = set()
    real = cache(os.path.realpath)
    for shard in shards:
        place: object = shard
        if isinstance(shard, Folder):
            place = real(shard.path)
        elif isinstance(shard, Path):  # several links to one file are allowed: content-addressed stores make them
            place = real(shard.parent), shard.name
        if place in seen:
            raise ConfigError(f"the shard {shard} is named twice: name it once; each sample counts once in an epoch")
        seen.add(place)
    return shards


def resolve_local(tar: Tar) -> list[LocalShard]:
    """Returns the shards like `resolve_shards`, for code that needs all shards on a disk.

    Raises:
        ConfigError: a shard is on a store.
    """
    shards = resolve_shards(tar)
    if on_store := [shard for shard in shards if isinstance(shard, RemoteShard)]:
        raise ConfigError(f"{on_store[0]} is on a store, but only local shards can be used here: download it first")
    return [shard for shard in shards if not isinstance(shard, RemoteShard)]


def user_path(path: str | os.PathLike[str]) -> Path:
    """Returns a path with a leading `~` or `~user` replaced by the home folder.

    Raises:
        ConfigError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError):  # ValueError if the name has a null byte
        user = Path(path).parts[0]
        raise ConfigError(
            f"{os.fspath(path)}: the home folder of {user} is not known: write the folder out, or ./{user} for a "
            f"folder of that name"
        ) from None


def _find(source: str, mixed: bool) -> Sequence[Shard]:
    try:
        return _expand(source, mixed)
    except GPULoaderError:
        raise
    except OSError as error:  # the folder may not be read, or the name is too long
        where = source if error.filename is None else error.filename
        raise DataError(
            f"{where} cannot be read ({error.strerror}): check the path and your permissions, or name the shards "
            f"in a list"
        ) from None


def _expand(source: str, mixed: bool, braces: bool = True) -> Sequence[Shard]:
    """Returns the shards of a path, URL or pattern; with `braces=False`, braces are part of the name."""
    if (protocol := remote_protocol(source)) is not None:
        return _expand_url(source, protocol, mixed, braces)
    source = source.removeprefix("file://")
    if not source:
        raise ConfigError(
            "tar='': allowed is a path, a URL, a folder, a pattern, or a list of these; '.' is the current folder"
        )
    path = user_path(source)
    mode, unseen = 0, None
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # a brace pattern may be longer than any file name
        unseen = error
    if stat.S_ISDIR(mode):
        return _expand_folder(path, mixed)
    if mode:
        return open_merged(path, mixed) if path.suffix == MERGED_SUFFIX else [path]
    if "{" in source and braces:
        return [shard for part in expand_braces(source) for shard in _expand(part, mixed, braces=False)]
    if glob.has_magic(source):
        found = sorted(map(Path, glob.glob(str(path), recursive=True)))
        shards = [shard for shard in found if not shard.is_dir() and not _is_index(shard.name)]
        has_tars = any(shard.suffix == ".tar" for shard in shards)
        if folders := set() if has_tars else {*filter(None, map(_first_with_pictures, found))}:
            _refuse_pictures(f"{source} matches folders of pictures", folders)
        return _check_any(shards, f"no file matches {source}")
    if isinstance(unseen, OSError) and not isinstance(unseen, (FileNotFoundError, NotADirectoryError)):
        raise unseen
    raise ShardNotFoundError(f"no such file: {source}{_hint(path)}")


def _expand_folder(path: Path, mixed: bool) -> Sequence[Shard]:
    """Returns the tars in a folder or in its merged index; or the folder itself if it has pictures."""
    if has_merged(path):
        _warn_of_archives(path)
        return open_merged(path / MERGED_FILE, mixed)
    if found := tars_in(path, mixed):
        beside = (file for file in path.glob("*/*") if is_picture(file.name) and file.is_file())
        beside = (file for file in beside if not in_hidden_folder(f"{file.parent.name}/"))
        if picture := next((file for file in beside if file.suffix.lower() != ".npy"), None):
            raise ConfigError(
                f"{path} has tars, such as {found[0].name}, and folders of pictures, such as {picture.parent.name}: "
                f"give {path}/*.tar, or move the tars elsewhere"
            )
        return found
    folder = Folder(path)
    listing, folders = folder.listing, folder.listing.top_folders
    if not len(listing.pictures):
        hidden = "; hidden folders are left out" if listing.hidden[0] else ""
        unread = [f", but {name}, {_NO_SHARD}" for name in _archives_in(path)]
        unread += [
            f", but {name}, {why}" for name in map(listing.name, range(len(listing))) if (why := only_for_pack(name))
        ]
        problem = f"neither *.tar nor pictures in the folder {path}{_folders_with_tars(path)}"
        return _check_any([], f"{problem}{next(iter(unread), '')}{hidden}")
    if folders and set(folders) <= SPLITS and all("/" in listing.name(each) for each in listing.pictures.tolist()):
        raise ConfigError(
            f"{path} has the splits {', '.join(folders)} instead of classes: give one of them, such as "
            f"{path / folders[0]}"
        )
    return [folder]


def _refuse_pictures(found: str, folders: Collection[Path]) -> NoReturn:
    """Raises ConfigError for pictures in these folders, and advises the folder above."""
    above = Path(os.path.commonpath([folder.absolute() for folder in folders]))
    flat = f", or {above} for pictures without classes" if len(folders) == 1 else ""
    raise ConfigError(
        f"{found}: give the folder above the class folders, {above.parent if flat else above}{flat}; "
        f"Sampling(subset=...) chooses some of its pictures"
    )


def _first_with_pictures(path: Path) -> Path | None:
    """Returns the first folder with pictures, from a folder down; None if there is none."""
    below = (Path(top) for top, _, names in os.walk(path) if any(map(is_picture, names)))
    return next((each for each in below if not in_hidden_folder(f"{each.relative_to(path.parent)}/")), None)


def tars_in(folder: Path, mixed: bool) -> list[Path]:
    """Returns a folder's tars by name, of one split unless `mixed`; raises OSError if unreadable, unlike `glob`.

    Logs how many archives beside them are no plain tars.
    """
    found = sorted(file for file in folder.iterdir() if file.suffix == ".tar" and not file.is_dir())
    if not mixed:
        check_one_split(str(folder), (file.name for file in found))
    if found:
        _warn_of_archives(folder)
    return found


def _archives_in(folder: Path) -> list[str]:
    """Returns the names of archives that are no shards, such as `a.tar.gz`, `a.TAR` and `a.zip`, sorted."""
    found = (file for file in folder.iterdir() if _OTHER_ARCHIVE.fullmatch(file.name) and file.suffix != ".tar")
    return sorted(file.name for file in found if not file.is_dir())


def _warn_of_archives(folder: Path) -> None:
    if names := _archives_in(folder):
        count = counted(len(names), "archive")
        _log.warning("left out beside the tars of %s: %s, the first being %s, %s", folder, count, names[0], _NO_SHARD)


def _expand_url(source: str, protocol: str, mixed: bool, braces: bool) -> Sequence[Shard]:
    if "{" in source and braces:
        return [shard for part in expand_braces(source) for shard in _expand(part, mixed, braces=False)]
    folder = source.endswith("/")
    if protocol in ("http", "https"):
        if folder or "*" in source:  # a question mark begins a query, and brackets may be part of names
            raise ConfigError(
                f"{without_secrets(source)}: {protocol}:// cannot list objects: name the shards, in braces or a list"
            )
    elif folder or glob.has_magic(source):
        shards = [shard for shard in list_shards(f"{source}*.tar" if folder else source) if not _is_index(shard.name)]
        shown = without_secrets(source)
        if folder and not mixed:
            check_one_split(shown.rstrip("/"), (shard.name for shard in shards))
        return _check_any(
            shards, f"no *.tar in the folder {shown}" if folder else f"no object matches {shown}", "the URL"
        )
    shard = RemoteShard(source)
    return open_merged(shard, mixed) if shard.name.endswith(MERGED_SUFFIX) else [shard]


def _is_index(name: str) -> bool:
    return name.endswith((INDEX_SUFFIX, MERGED_SUFFIX))


def _check_any(shards: Sequence[Shard], problem: str, what: str | None = None) -> list[Shard]:
    if not shards:
        what = what or f"the path (relative to {Path.cwd()})"
        raise ShardNotFoundError(f"{problem}: check {what}, or name the shards in a list")
    return list(shards)


def _advice_on_dataset(source: object) -> str:
    """Returns advice on how to read a data set of torch, Hugging Face or webdataset; "" for other objects."""
    kinds = [kind.__name__ for kind in type(source).__mro__]
    if "DatasetFolder" in kinds:
        folder = shlex.quote(str(getattr(source, "root", "FOLDER")))
        return (
            f". tar=dataset.root reads the folder of this data set; or `gpuloader pack {folder} shards` makes shards "
            f"of it, then use tar='shards'"
        )
    if "Dataset" in kinds:
        return (
            ". gpuloader.pack.pack(dataset, 'shards') makes shards of a data set, then use tar='shards'; or take "
            "gpuloader.compat.UniversalDataModule, which uses torch's DataLoader"
        )
    return ""


def _folders_with_tars(folder: Path) -> str:
    names = {file.parent.name for file in folder.glob("*/*.tar")}
    found = sorted(name for name in names if not in_hidden_folder(f"{name}/"))
    return f", but in its folders {', '.join(found[:3])}" if found else ""


def _hint(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (there is no folder {path.parent} either)"
    near = similar(path.name, (other.name for other in path.parent.iterdir()), 3)
    return f"; similar names are {', '.join(sorted(near))}" if near else f"; the folder {path.parent} has no such name"
