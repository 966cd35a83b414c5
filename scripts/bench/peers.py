"""The systems of the comparison, and the environment that each of them runs in."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

PLAIN = ("train", "eval")
"""The recipes that every system has."""

AUGMENTED = ("resnet50_v2", "randaugment")
"""Those that change pixels: colours, warps, erasing, mixing."""

DECODED = ("decoded-train", "decoded-serve")
"""Those on images that were decoded once, squashed to squares before: TBL files have no other shape."""

TARGETS = ("detect", "segment")
"""Those that move boxes or masks with the images; their shards are from `make_targets`."""

PRESETS = tuple(sorted(path.stem for path in Path(__file__).resolve().parents[2].glob("configs/presets/*.yaml")))
"""Those of this library."""

_TORCH = "torch==2.13.0"
_TRANSFORMS = (_TORCH, "numpy==2.4.6", "pillow==13.0.0", "simplejpeg==1.9.0")
_TORCHVISION = ("torchvision==0.28.0",)


@dataclass(frozen=True)
class Environment:
    """Pinned distributions in a virtual environment of their own.

    Attributes:
        name: of its folder.
        requirements: what pip installs, with what that needs.
        alone: what pip installs without what it needs, so that torchvision takes the torch that is there.
    """

    name: str
    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()


@dataclass(frozen=True)
class System:
    """A row of the table.

    Attributes:
        title: its name there.
        module: its runner.
        variant: the runner's variant.
        environment: None for the one that the benchmark itself runs in.
        recipes: those that its runner has.
        note: where it departs from the recipe.
        plain: of a system that reads seekable shards, the name of the same one on the shards as they are.
        folder: whether it reads a folder of the shards' images instead: CLASS/NUMBER.jpg.
    """

    title: str
    module: str
    variant: str = ""
    environment: Environment | None = None
    recipes: tuple[str, ...] = PLAIN
    note: str = ""
    plain: str = ""
    folder: bool = False

    @property
    def name(self) -> str:
        """What the command line calls it."""
        module = self.module.strip("_").replace("_", "-")
        data = "seekable" if self.plain else "folder" if self.folder else ""
        return "-".join(filter(None, (module, self.variant, data)))

    @property
    def on_seekable(self) -> System:
        """The same system on seekable shards."""
        return replace(self, title=f"{self.title}, seekable shards", recipes=PLAIN, note="", plain=self.name)


_torchvision = Environment("torchvision", _TRANSFORMS, _TORCHVISION)
_turboloader = Environment("turboloader", ("turboloader==2.39.0", _TORCH, "numpy==2.4.6", "pillow==13.0.0"))
_spdl = Environment("spdl", ("spdl==0.8.0", *_TRANSFORMS), _TORCHVISION)
_turbojpeg = Environment("turbojpeg", ("turbojpeg==0.0.2", "numpy==2.4.6"))
_ffcv = Environment("ffcv", ("ffcv==1.0.2", *_TRANSFORMS))
_litdata = Environment("litdata", (*_TRANSFORMS, *_TORCHVISION, "litdata==0.2.76"))
_OLDER = (_TORCH, "numpy==2.1.3", "pillow==13.0.0", "simplejpeg==1.9.0")  # it allows no newer NumPy
_streaming = Environment("streaming", (*_OLDER, *_TORCHVISION, "mosaicml-streaming==0.13.0"))
_grain = Environment("grain", (*_TRANSFORMS, "grain==0.2.18"), _TORCHVISION)
_lance = Environment("lance", (*_TRANSFORMS, "lancedb==0.40.0", "pyarrow==25.0.0"), _TORCHVISION)
_webdataset = Environment("webdataset", (*_TRANSFORMS, "webdataset==1.0.2"), _TORCHVISION)
_datasets = Environment("datasets", (*_TRANSFORMS, "datasets==5.2.0", "pyarrow==25.0.0"), _TORCHVISION)
_energon = Environment("energon", (*_TRANSFORMS, "megatron-energon==7.4.1", "webdataset==1.0.2"), _TORCHVISION)
_torchcodec = Environment(
    "torchcodec", ("torch==2.14.1", "torchvision==0.29.1", "torchcodec==0.17.0", *_TRANSFORMS[1:])
)  # its wheel is linked against torch's build for CUDA, of which that is one

PLOT = Environment("plot", ("matplotlib==3.11.2",))
"""For drawing the plots."""

_pillow = System(
    "torch + torchvision, Pillow",
    "torchvision_",
    "pil",
    _torchvision,
    recipes=(*PLAIN, *AUGMENTED, *TARGETS),
    note="always antialiases",
)

_SYSTEMS = (
    System("gpuloader", "gpuloader_", recipes=(*PLAIN, *AUGMENTED, *DECODED, *TARGETS)),
    System("gpuloader, oversampling 1.5", "gpuloader_", "oversampling", note="always antialiases"),
    System("gpuloader, folder", "gpuloader_", folder=True),
    System("stock DALI", "stock_dali"),
    System("stock DALI, regions", "stock_dali", "regions", note="some GPUs' decoders end the process"),
    System("turboloader", "turboloader_", environment=_turboloader, note="eval: squashes instead of cropping"),
    System("turboloader, TBL", "turboloader_", "tbl", _turboloader, recipes=DECODED),
    _pillow,
    replace(_pillow, title=f"{_pillow.title}, ImageFolder", recipes=PLAIN, folder=True),
    System("torch + torchvision, simplejpeg", "torchvision_", "simplejpeg", _torchvision, recipes=(*PLAIN, *AUGMENTED)),
    System("torch + torchvision, TorchCodec", "torchvision_", "torchcodec", _torchcodec),
    System("DALI's dynamic mode", "dali_dynamic"),
    System("LitData, simplejpeg + torchvision", "litdata_", environment=_litdata),
    System("MosaicML Streaming, simplejpeg + torchvision", "streaming_", environment=_streaming),
    System("Grain, simplejpeg + torchvision", "grain_", environment=_grain),
    System("LanceDB, simplejpeg + torchvision", "lance_", environment=_lance),
    System("webdataset, simplejpeg + torchvision", "webdataset_", environment=_webdataset),
    System("Hugging Face datasets, simplejpeg + torchvision", "datasets_", environment=_datasets),
    System("Energon, simplejpeg + torchvision", "energon_", environment=_energon),
    System("SPDL, simplejpeg + torchvision", "spdl_", environment=_spdl),
    System("FFCV", "ffcv_", environment=_ffcv, note="always antialiases; JPEGs encoded again"),
    System("floor: read only", "floors", "read"),
    System("floor: decode the region only", "floors", "decode"),
    System("floor: decode the region at a smaller scale", "scaled_floor", environment=_turbojpeg),
    System("floor: decode the region, resize", "floors", "decode-resize"),
    System("floor: resident synthetic batch", "floors", "resident"),
)

_ON_SEEKABLE = ("gpuloader", "gpuloader-oversampling", "stock-dali", "turboloader", "floors-decode")
"""Those that are measured on seekable shards, too: each right after itself on plain ones."""

SYSTEMS: dict[str, System] = {
    system.name: system
    for plain in _SYSTEMS
    for system in (plain, *([plain.on_seekable] if plain.name in _ON_SEEKABLE else []))
}


class NotInstalledError(Exception):
    """The environment cannot be made here; the message says why, and names nothing of this machine."""


def python_of(environment: Environment | None, work: Path) -> Path:
    """The interpreter of an environment, which is made under `work` where it is not there yet.

    Raises:
        NotInstalledError: pip could not.
    """
    if environment is None:
        return Path(sys.executable)
    content = repr((environment.requirements, environment.alone, sys.version))
    folder = work / environment.name
    python, stamp = folder / "bin/python", folder / hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
    if stamp.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(folder))
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, *environment.requirements)
    if environment.alone:
        _run(*pip, "--no-deps", *environment.alone)
    stamp.touch()
    return python


_IN_WORDS = (
    ("libc10_cuda|libtorchcodec", "its wheel needs CUDA's libraries, which this machine lacks"),
    ("required package: opencv", "its build needs Debian's libopencv-dev, which this machine lacks"),
    ("required package: libturbojpeg", "its build needs Debian's libturbojpeg0-dev, which this machine lacks"),
)


def in_words(said: str) -> str:
    """Says in words why a system was not measured, where the line of its error is one of those that are known."""
    return next((words for pattern, words in _IN_WORDS if re.search(pattern, said)), said)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalledError(reason(done.stderr))


def reason(stderr: str) -> str:
    """The line of an error output that says most, without paths and addresses: they are of this machine."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*Error: ", line)]
    [line] = (raised or [line for line in lines if line.startswith("ERROR: ")] or lines or ["no reason was given"])[-1:]
    return re.sub(r"\w+://\S+|(/[^\s:,'\"]+)+/", "", line)[:300]
