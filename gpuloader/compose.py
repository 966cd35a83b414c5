"""`Compose`: a recipe written in Python, for a loader or for images and targets in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from gpuloader.base.forking import at_fork
from gpuloader.base.read_ahead import EndOfItems
from gpuloader.base.values import as_python_integer, is_integer
from gpuloader.errors import ConfigError, DataError
from gpuloader.images.gate import admit_each
from gpuloader.images.limits import RefusalError
from gpuloader.images.orientation import image_orientations
from gpuloader.loading.argument_types import AnyDevice
from gpuloader.loading.arguments import resolve_own_device
from gpuloader.loading.decoding_loop import DecodingLoop
from gpuloader.loading.delivery import Images, by_view, finish
from gpuloader.loading.options import Decoder
from gpuloader.loading.own_code_loop import OwnCodeContext, OwnCodeLoop, decoding_of
from gpuloader.loading.world import World
from gpuloader.pipelines import cut_to_region
from gpuloader.plan import Draws
from gpuloader.recipe import AnyPreset, AugmentParams, Recipe, Shape, load_preset, recipe_from_torchvision, recipe_yaml
from gpuloader.targets.dictionaries import OwnDictionaries, boxes_of, check_targets, move_targets

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Image: TypeAlias = "NDArray[np.uint8] | Picture | bytes | bytearray"
"""An image: an array uint8 (height, width, 3), a PIL image, or the bytes of a file."""
Kind = TypeVar("Kind", bound=Image)


class Mipmap(bytes):
    """A file with a smaller copy of a picture; random parameters are drawn for the picture's (height, width)."""

    picture: Shape

    def __new__(cls, file: bytes, picture: Shape) -> Self:
        mipmap = super().__new__(cls, file)
        mipmap.picture = picture
        return mipmap


class Compose(Recipe):
    """A recipe of transforms, named and set as in `torchvision.transforms.v2`.

    Pass it to a loader as `preset`, or call it on images. `print(compose)` shows it as YAML. The arguments are the same
    as for `gpuloader.recipe.Recipe`. A call ignores `mipmaps`, because only loaders read smaller copies.

    Example:
        >>> import numpy as np
        >>> from gpuloader import Compose
        >>> from gpuloader.transforms import RandomHorizontalFlip, RandomResizedCrop
        >>> compose = Compose([RandomResizedCrop(32), RandomHorizontalFlip()])
        >>> compose(np.zeros((48, 64, 3), np.uint8), seed=7).shape
        torch.Size([3, 32, 32])
    """

    @classmethod
    def load(
        cls,
        preset: AnyPreset,
        /,
        *,
        functions: Iterable[Callable[..., Any]] = (),
        **overrides: Any,  # noqa: ANN401
    ) -> Compose:
        """Loads a preset by name, or a recipe from a YAML file, and overrides some values.

        Args:
            preset: a name, a path, a recipe, a dictionary of a recipe's keys, or `{name: {key: new value}}`.
            functions: the functions that the recipe's `Apply` names, because a YAML file holds no code.
            overrides: new values for keys of the recipe, such as `dtype="float16"`, and for transforms by name, such as
                `RandomResizedCrop={"size": 160}`. None removes a transform.

        Raises:
            PresetError: the recipe is missing or invalid.

        Example:
            >>> from gpuloader import Compose
            >>> Compose.load("imagenet_train", RandomResizedCrop={"size": 160}).shapes
            [(160, 160)]
        """
        return cls._of(load_preset(preset, overrides, functions))

    @classmethod
    def from_torchvision(cls, transform: object, *, own_code: bool = False, **options: Any) -> Compose:  # noqa: ANN401
        """Converts a torchvision transform, v1 or v2, or a model's own configuration to an equivalent recipe.

        It also converts the presets and transforms of torchvision's reference scripts, and the transforms of open_clip,
        CLIP, timm, lightly and solo-learn. Their lists of pipelines become `views`. A list without `ToTensor` or
        `ToDtype` gives uint8.

        Two conversions change pixels. lightly and solo-learn blur with Pillow: `GaussianBlur` states the difference.
        `RandomPhotometricDistort` moves after the geometry, with a warning: it then changes the padding's colour, too.

        Args:
            transform: a transform, a `Compose`, or a list of transforms. Or a model's configuration for evaluation:
                timm's `resolve_model_data_config(model)`, or Hugging Face's `AutoImageProcessor` or its `to_dict()`.
                Hugging Face's centre crop may be one pixel away, because it rounds down.
            own_code: run transforms without counterpart as they are, and all transforms between them, in an `Apply`.
                They must come before `Normalize`.
            options: further arguments of the recipe, such as `layout`.

        Raises:
            PresetError: some parts are not supported; the message names all of them.

        Example:
            >>> from gpuloader import Compose
            >>> config = {"input_size": (3, 160, 160), "interpolation": "bicubic", "mean": (0.5, 0.5, 0.5),
            ...           "std": (0.5, 0.5, 0.5), "crop_pct": 0.95, "crop_mode": "center"}
            >>> Compose.from_torchvision(config).transforms[0]
            Resize(size=168, interpolation='bicubic', max_size=None, antialias=True, pad=None)
        """
        return cls._of(recipe_from_torchvision(transform, own_code=own_code, **options))

    @classmethod
    def from_timm(cls, transform: object, *, own_code: bool = False, **options: Any) -> Compose:  # noqa: ANN401
        """Converts the result of timm's `create_transform(...)`, for training or evaluation, to a recipe.

        RandAugment becomes `TimmRandAugment`, AutoAugment `TimmAutoAugment`, and 3-Augment `ThreeAugment`. Their
        operations compute as torchvision does, not as PIL.

        Args:
            transform: the result of `create_transform`, or of `resolve_model_data_config(model)`. For timm's
                --aug-splits, use `separate=True` and give the number of splits as `views`. All views share the crop.
                The first view is not augmented; with `re_num_splits` it is not erased, either.
            own_code: as in `from_torchvision`.
            options: further arguments of the recipe, such as `layout`, or `mix` in place of timm's `Mixup`.

        Raises:
            PresetError: some parts are not supported; the message names them and the arguments of `create_transform`
                to use instead.
        """
        return cls.from_torchvision(transform, own_code=own_code, **options)

    @overload
    def __call__(
        self,
        images: Kind | list[Kind],
        targets: None = None,
        *,
        seed: int = 0,
        epoch: int = 0,
        sample: int = 0,
        device_id: AnyDevice = "auto",
    ) -> Images: ...

    @overload
    def __call__(
        self,
        images: Kind | list[Kind],
        targets: Mapping[str, Any] | list[dict[str, Any]],
        *,
        seed: int = 0,
        epoch: int = 0,
        sample: int = 0,
        device_id: AnyDevice = "auto",
    ) -> tuple[Images, Any]: ...

    def __call__(
        self,
        images: Kind | list[Kind],
        targets: Mapping[str, Any] | list[dict[str, Any]] | None = None,
        *,
        seed: int = 0,
        epoch: int = 0,
        sample: int = 0,
        device_id: AnyDevice = "auto",
    ) -> Any:
        """Applies the recipe: one image gives (3, h, w), a list of n gives (n, 3, h, w), several views give a list.

        With `batch="list"`, a list of n gives a list of n tensors (3, h, w).

        A call runs the same graph as a loader, on the CPU or a GPU. Image i gets the random parameters of the sample
        `sample` + i, for this seed and epoch. With `orientation="apply"`, files and PIL images are turned upright; an
        array has no orientation. `mix` is not applied, because it needs a batch with labels.

        Args:
            images: one image, or a list of images.
            targets: one dictionary for each image, of arrays or tensors, as for torchvision's detection models. Then
                the call returns (images, targets), with the targets' tensors on the images' device. Coordinates are
                pixels of the image, or of the upright image if the recipe turns it: "boxes" (n, 4) x1, y1, x2, y2;
                "masks" (n, H, W) of objects; "mask" (H, W) of classes; "keypoints" (n, k, 2), or (n, k, 3) with
                visibility. They move exactly as a loader's fields `Boxes`, `Mask` and `Keypoints`. "area" is scaled
                with its box. A box that is left with less than a pixel of width or height is dropped, with its row in
                all entries of n rows. "image_id", "size", "orig_size" and all other entries do not change.
            device_id: the GPU or the CPU, as for a `GPULoader`. In a worker process of torch's DataLoader, "auto" is
                the CPU.

        Raises:
            ConfigError: an image is not a uint8 array (height, width, 3), a number is out of range, or a target has
                another form or cannot follow the recipe.
            DataError: an image cannot be decoded, or its output would be too large.

        Example:
            >>> import numpy as np
            >>> from gpuloader import Compose
            >>> from gpuloader.transforms import RandomHorizontalFlip, Resize
            >>> compose = Compose([Resize((24, 32)), RandomHorizontalFlip(1)])
            >>> target = {"boxes": np.array([[8, 0, 24, 16]]), "labels": np.array([3])}
            >>> image, target = compose(np.zeros((48, 64, 3), np.uint8), target)
            >>> target
            {'boxes': tensor([[20.,  0., 28.,  8.]]), 'labels': tensor([3])}
        """
        one = not isinstance(images, list)
        given: Sequence[Any] = images if isinstance(images, list) else [images]
        _check_images(given)
        for name, value, bits in (("seed", seed, 64), ("epoch", epoch, 32), ("sample", sample, 63)):
            if not is_integer(as_python_integer(value), 0, 2**bits):
                raise ConfigError(f"{name}={value!r}: allowed is an integer in [0, 2**{bits})")
        listed = None if targets is None else check_targets(self, [targets] if one else targets, len(given))
        if self.by_boxes and not all("boxes" in each for each in listed or ({},)):
            raise ConfigError(f'{self.by_boxes} draws by boxes: give each image a target with "boxes", (n, 4)')
        draws = Draws(int(seed), int(epoch), np.arange(len(given)) + sample)
        boxes = () if listed is None else boxes_of(listed)
        files, params, causes = draw_images(self, given, draws, boxes)
        _refuse(causes)
        cut, params = cut_copies(files, params)
        links, own = self.links, None
        if links is not None and links.takes_targets and listed is not None:
            own = OwnDictionaries(listed, params)
        views = self._graph.run(_Batch(cut, params, way_of(self, draws, own)), resolve_own_device(device_id))
        made = finish(self, [view[0] for view in views] if one else views)
        if listed is None:
            return made
        if links is not None:
            params = self.draw(draws, params.views[0].placements[0].shape, boxes=boxes)
        pairs = [(listed, view) for view in params.views] if own is None else own.behind
        moved = [move_targets(*pair, views[0][0].device) for pair in pairs]
        return made, by_view([view[0] for view in moved] if one else moved)

    def close(self) -> None:
        """Frees the memory of the last call's device. A later call takes it again; closing twice is fine."""
        self._graph.close()

    def __str__(self) -> str:
        return recipe_yaml(self)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_graph", "links")
        }  # each process has its own

    @cached_property
    def _graph(self) -> _Graph:
        return _Graph(copy(self))  # a copy, so that the graph is freed with the recipe

    @classmethod
    def _of(cls, preset: Recipe) -> Compose:
        return cls(**{name: getattr(preset, name) for name in Recipe.__dataclass_fields__})


class _Batch(NamedTuple):
    """Images as the graph takes them, and their random parameters."""

    images: Sequence[NDArray[np.uint8]]
    params: AugmentParams
    context: OwnCodeContext | None


def way_of(recipe: Recipe, draws: Draws, own: OwnDictionaries | None = None) -> OwnCodeContext | None:
    """Returns the context of a recipe's own code, which names images by their ids; None without own code."""
    if recipe.links is None:
        return None
    finish = None if own is None else own.finish
    return OwnCodeContext(recipe.at(draws.epoch), draws, lambda its, row: f"image {its.ids[row]}", own, finish)


class _Graph:
    """A recipe's graph, which runs one batch at a time and is kept for the next calls on the same device."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._lock = Lock()
        self._decoding: dict[int | None, DecodingLoop[_Batch] | OwnCodeLoop[_Batch]] = {}
        at_fork(self, _Graph._renew_lock)

    def run(self, batch: _Batch, device_id: int | None) -> list[Any]:
        """Returns the images of each view; raises DataError if one cannot be decoded."""
        with self._lock:
            if device_id not in self._decoding:
                self._close()
                decoder = Decoder(prefetch=1).on(device_id, World.of_process().cores)
                self._decoding = {device_id: decoding_of(self._recipe, decoder, device_id, between_calls=False)}
            batches = iter([batch])
            self._decoding[device_id].start(lambda: next(batches, EndOfItems()), lambda _, causes: _refuse(causes))
            decoded = self._decoding[device_id].next()
        assert decoded is not None
        return decoded[1]

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        for decoding in self._decoding.values():
            decoding.close()
        self._decoding.clear()

    def _renew_lock(self) -> None:
        self._lock = Lock()  # another thread may have held it in the parent


def _check_images(images: Sequence[Any]) -> None:
    encoded = [isinstance(image, (bytes, bytearray)) for image in images]
    if not images or any(encoded) != all(encoded):
        raise ConfigError(
            f"images: found {len(images)}, {sum(encoded)} of them bytes: give at least one, all arrays or all bytes"
        )


def _refuse(causes: Mapping[int, str]) -> None:
    if causes:
        raise DataError("; ".join(f"image {number} cannot be decoded: {cause}" for number, cause in causes.items()))


def draw_images(
    recipe: Recipe, images: Sequence[Any], draws: Draws, boxes: Sequence[NDArray[np.float64]] = ()
) -> tuple[list[NDArray[np.uint8]], AugmentParams, dict[int, str]]:
    """Returns (images as the graph takes them, their random parameters, the causes of refused images by row).

    The parameters are for the part of the recipe before its own code, if it has any. An image is refused if it cannot
    be decoded or its output would be too large.

    Raises:
        ConfigError: an image is neither a file nor uint8 (height, width, 3).
    """
    turned = None
    if images and isinstance(images[0], (bytes, bytearray)):
        files, sizes, refused = admit_each(images, recipe.max_pixels)
        turned = image_orientations(images) if recipe.orientation == "apply" else None
    else:
        files, refused = _as_arrays(images, upright=recipe.orientation == "apply")
        sizes = np.array([array.shape[:2] for array in files], np.int64)
    at = recipe.at(draws.epoch)
    sizes = sizes.reshape(-1, 2)
    each = zip(images, sizes.tolist())
    pictures = np.array([image.picture if isinstance(image, Mipmap) else size for image, size in each], np.int64)
    pictures = pictures.reshape(-1, 2)
    params = at.before_own_code.draw(draws, pictures, turned, boxes).in_files(pictures, sizes)
    return files, params, {**params.refused(), **refused}


def cut_copies(
    images: Sequence[NDArray[np.uint8]], params: AugmentParams
) -> tuple[Sequence[NDArray[np.uint8]], AugmentParams]:
    """Cuts copies of files to the region that is needed, as the bytes are the caller's; returns arrays unchanged."""
    return cut_to_region([file.copy() for file in images], params) if images[0].ndim == 1 else (images, params)


def _as_arrays(images: Sequence[Any], upright: bool) -> tuple[list[NDArray[np.uint8]], dict[int, str]]:
    """Converts arrays and PIL images to arrays; also returns by row why one cannot be converted."""
    arrays, refused = [np.zeros((1, 1, 3), np.uint8)] * len(images), {}
    for number, image in enumerate(images):
        try:
            array = _as_array(image, upright)
        except RefusalError as error:
            refused[number] = error.cause
            continue
        if not (array.ndim == 3 and array.shape[2] == 3 and array.dtype == np.uint8 and array.size):
            of_numbers = array.dtype.kind in "biuf"
            found = f"{array.dtype} of shape {array.shape}" if of_numbers else f"a {type(image).__name__}"
            raise ConfigError(
                f"image {number} is {found}: allowed are the bytes of a file, PIL images, and uint8 arrays of RGB "
                "(height, width, 3)"
            )
        arrays[number] = array
    return arrays, refused


def _as_array(image: Any, upright: bool) -> NDArray[Any]:  # noqa: ANN401
    """Converts an array or a PIL image to an array; `upright` applies a PIL image's EXIF orientation."""
    try:
        return np.ascontiguousarray(_turn_upright(image) if upright else image)
    except Exception as error:  # PIL's decoders and a user's `__array__` raise errors of any type
        said = str(error) or type(error).__name__
        raise RefusalError(f"this {type(image).__name__} cannot become an array: {said}") from error


def _turn_upright(image: object) -> object:
    from PIL import Image, ImageOps  # imported late: a normal start does not need it

    return ImageOps.exif_transpose(image) if isinstance(image, Image.Image) else image
