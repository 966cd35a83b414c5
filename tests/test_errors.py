"""The exception tree, and what each error says: what is wrong, what was found, what is allowed, what to do next."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from making import damaged_jpeg, jpeg, write_shard
from torchvision.transforms import v2

from gpuloader import BadImages, Compose, GPULoader, errors
from gpuloader import transforms as T
from gpuloader.loading.installation import check_dali
from gpuloader.pack import pack
from gpuloader.recipe import load_preset

TREE = {name: thing for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)}
CROP = T.CenterCrop(8)


def test_every_error_is_public_and_one_of_ours() -> None:
    assert set(TREE) == set(errors.__all__)
    assert all(issubclass(error, errors.GPULoaderError) for error in TREE.values())
    assert issubclass(errors.PresetError, errors.ConfigError)


@pytest.mark.parametrize(
    "error",
    [
        errors.BadImageError("a.tar", "k", 512, "cut"),
        errors.TarError("a.tar", 7, "cut"),
        errors.StateError("x"),
        errors.RemoteError("s3://a", "HTTP 500", 5),
    ],
)
def test_errors_survive_pickling_as_they_cross_processes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, of which all but good.tar have a fault."""
    folder = tmp_path_factory.mktemp("faults")
    samples = [{"__key__": f"{n}", "jpg": jpeg(40, 40, n), "cls": b"%d" % n} for n in range(4)]
    write_shard(folder / "good.tar", samples)
    write_shard(folder / "bad.tar", [{**samples[0], "jpg": damaged_jpeg()}, samples[1]])
    write_shard(folder / "worse.tar", [{**samples[0], "__key__": f"{n}", "jpg": damaged_jpeg()} for n in range(20)])
    write_shard(folder / "texts.tar", [{"__key__": "a", "txt": b"x"}])
    write_shard(folder / "unlabelled.tar", [{"__key__": "a", "jpg": jpeg(40, 40)}])
    (folder / "photo.tar").write_bytes(jpeg(40, 40))
    (folder / "cut.tar").write_bytes((folder / "good.tar").read_bytes()[:2000])
    for name in ("changing", "merged/train"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.tar").write_bytes((folder / "good.tar").read_bytes())
    (folder / "merged/all.gpuset").write_bytes(b"damaged")
    return folder


def loader(shards: str = "good.tar", batch_size: int = 2, device: object = "cpu", **options: object) -> GPULoader:
    return GPULoader(shards, batch_size, device, **{"preset": Compose([CROP]), **options})  # type: ignore[arg-type]


def load(shards: str, **options: object) -> None:
    with loader(shards, **options) as batches:
        list(batches)


def load_closed() -> None:
    batches = loader()
    batches.close()
    list(batches)


def load_changed() -> None:
    with loader("changing.tar") as batches:
        Path("changing.tar").write_bytes(b"")
        list(batches)


def resume(state: object) -> None:
    with loader() as batches:
        batches.load_state_dict(state)  # type: ignore[arg-type]


def fail(error: Exception) -> None:
    raise error


LEVELS = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
ERRORS: list[tuple[Callable[[], object], type[Exception], str]] = [  # `...` are words that are left out
    # A loader.
    (lambda: loader(batch_size=0), errors.ConfigError, "batch_size=0: allowed is an integer of at least 1"),
    (lambda: loader(shuffel=True), errors.ConfigError,
     "shuffel: GPULoader has no such argument; did you mean shuffle?"),
    (lambda: loader(shuffle="ful"), errors.ConfigError,
     "shuffle='ful': allowed are 'none', 'full', 'block', 'shards', True, False and a function of the epoch"),
    (lambda: loader(device="cuda:99"), errors.DeviceError, "device_id='cuda:99' but ..."),
    (lambda: check_dali(lambda _: ["nvidia-dali-cuda120", "nvidia-dali-cuda130"]), errors.InstallationError,
     "nvidia-dali-cuda120 and nvidia-dali-cuda130 are both installed, but they overwrite each other's files\n"
     "pip uninstall nvidia-dali-cuda120 nvidia-dali-cuda130, then pip install 'gpuloader[cuda12]', or ..."),
    (load_closed, errors.LoaderError, "this loader is closed: make a new one"),
    (lambda: resume([]), errors.StateError,
     "this is not a state of a GPULoader but []: pass what its state_dict() returned"),
    (lambda: resume(loader(seed=1).state_dict()), errors.StateError,
     "the state has seed=1, this loader has seed=0. Make the loader as it was when the state was saved, or start "
     "without the state"),
    # The data.
    (lambda: load("no*.tar"), errors.ShardNotFoundError,
     "no file matches no*.tar: check the path (relative to ...), or name the shards in a list"),
    (lambda: load("photo.tar"), errors.TarError,
     "photo.tar: not a tar, but a JPEG: `gpuloader pack FOLDER SHARDS` makes shards of a folder of class folders; "
     "found at byte 0"),
    (lambda: load("cut.tar"), errors.TarError,
     "cut.tar: truncated: a member of ... bytes ends ... after the file at byte ..."),
    (load_changed, errors.ShardChangedError,
     "changing.tar ends before byte ...: it changed since this loader was created. Make a new loader once the shard is "
     "final"),
    (lambda: load("merged"), errors.IndexFileError,
     "merged/all.gpuset is not an index file of gpuloader. Run `gpuloader index --merge` again, or remove the file"),
    (lambda: load("texts.tar"), errors.NoSamplesError,
     "no images in texts.tar: a sample needs a member named KEY.EXT with one of the extensions jpg, ...; 'a.txt' is in "
     "no sample: its key has no image"),
    (lambda: load("unlabelled.tar"), errors.LabelError,
     "1 of 1 samples lack a label: they have no .cls component: 'a' in unlabelled.tar. No sample has one: "
     "label_from=None loads images without labels; ..."),
    (lambda: load("bad.tar"), errors.BadImageError,
     "bad image: DALI's decoder fails on it\n  shard  bad.tar\n  key    0\n  offset ...\n"
     'Repair or remove the sample, or go on without it: on_error="replace" to train, "skip" to evaluate.'),
    (lambda: load("worse.tar", on_error=BadImages(skip=True, max_share=0.1)), errors.TooManyBadImagesError,
     "... of 20 images are bad, more than BadImages(max_share=0.1) allows; the last one is ... in worse.tar: DALI's "
     "decoder fails on it. Repair the shards, or allow more"),
    (lambda: Compose([CROP])(b"no image"), errors.DataError,
     "image 0 cannot be decoded: no image format that DALI reads, or a broken header (it begins with b'no image')"),
    (lambda: fail(errors.RemoteError("s3://bucket/a.tar", "HTTP 500", 5)), errors.RemoteError,
     "s3://bucket/a.tar: HTTP 500 (5 tries). Check the URL, the credentials and the network. Nothing is lost: what was "
     "downloaded is kept. To resume, loop again, or load the state into a new loader"),
    (lambda: pack("nowhere", "shards"), errors.PackError, "no such source: nowhere (relative to ...)"),
    # A recipe: a value, a key, a structure.
    (lambda: T.CenterCrop(0), errors.PresetError, "`CenterCrop.size`: found 0: allowed is a number of at least 1"),
    (lambda: T.Resize(9, "bicubik"), errors.PresetError,  # type: ignore[arg-type]
     "`Resize.interpolation`: found 'bicubik' (did you mean bicubic?); allowed are 'nearest', 'bilinear', 'bicubic' or "
     "'lanczos'"),
    (lambda: T.Normalize(*LEVELS), errors.PresetError,
     "`Normalize`: mean [123.675, 116.28, 103.53], std [58.395, 57.12, 57.375] are for levels of 0 to 255, but values "
     "are in [0, 1] here: write mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225]"),
    (lambda: Compose([CROP], dtype="float46", views=0), errors.PresetError,  # type: ignore[arg-type]
     "`Compose.views`: found 0: allowed is a number of at least 1\n"
     "`Compose.dtype`: found 'float46' (did you mean float16?); allowed are 'float32', 'float16', 'bfloat16' or "
     "'uint8'"),
    (lambda: Compose([CROP], dtpye="uint8"), errors.PresetError,  # type: ignore[call-arg]
     "`Compose.dtpye` is an unknown key (did you mean dtype?); allowed are transforms, views, mix, dtype, layout, "
     "max_pixels, orientation, batch, oversampling"),
    (lambda: Compose([T.Normalize([0.5] * 3, [0.5] * 3), CROP]), errors.PresetError,
     "`Compose`: CenterCrop is in the wrong place: allowed are resizing, cropping, padding and flips first, then what "
     "changes pixels, then Normalize once, then RandomErasing once"),
    (lambda: Compose([T.Resize(8)]), errors.PresetError,
     "`Compose`: Resize: leaves images of different sizes: add CenterCrop or RandomCrop, or take RandomResizedCrop, or "
     "Resize to [height, width]; or set the recipe's `batch` to list or {pad: 32}"),
    # A recipe in a file, with overrides, or of another library.
    (lambda: load_preset("imagenet_trian"), errors.PresetError,
     "no preset is called 'imagenet_trian' (did you mean imagenet_train?): the presets are a1, ...; or give a path "
     "that ends in .yaml, or a Compose"),
    (lambda: load_preset({"transforms": ["RandomCrop"]}), errors.PresetError,
     "preset: `transforms[0].RandomCrop.size` is missing"),
    (lambda: load_preset({"transforms": ["RandomCrob"]}), errors.PresetError,
     "preset: `transforms[0]`: found 'RandomCrob' (did you mean RandomCrop?); allowed is a transform's name or "
     "{name: {parameter: value}}, of Resize, ..."),
    (lambda: load_preset("imagenet_train", {"size": 160}), errors.PresetError,
     "imagenet_train.yaml with overrides: `size` is not a key of a recipe, but of its RandomResizedCrop: write "
     "{'RandomResizedCrop': {'size': 160}}"),
    (lambda: Compose([v2.CenterCrop(8)]), errors.PresetError,  # type: ignore[list-item]
     "`Compose.transforms`: found torchvision.transforms.v2._geometry.CenterCrop: allowed are the transforms of "
     "gpuloader.transforms; Compose.from_torchvision translates those of torchvision"),
    (lambda: Compose.from_torchvision([v2.CenterCrop(8), v2.ElasticTransform(), v2.Grayscale()]), errors.PresetError,
     "torchvision's transform cannot be translated: ElasticTransform has no counterpart: the nearest is "
     "RandomPerspective; Grayscale with num_output_channels=1: only 3 is supported\n"
     "own_code=True runs transforms without counterpart as they are"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "says"), ERRORS, ids=[row[2][:40] for row in ERRORS])
def test_an_error_in_full(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object], kind: type[Exception], says: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert re.fullmatch(re.escape(says).replace(r"\.\.\.", ".*"), str(caught.value)), str(caught.value)


def test_each_kind_of_error_is_shown() -> None:
    assert {kind for _, kind, _ in ERRORS} == {*TREE.values()} - {errors.GPULoaderError}
