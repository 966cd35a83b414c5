"""`Compose`: a recipe written in Python, for a loader or for images and targets in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.forking import at_fork
from gpuloader.base.values import as_python_integer, is_integer
from gpuloader.chain.batch import Batch
from gpuloader.chain.decoding import decoding
from gpuloader.chain.given import Given, given_batch, prepare_images, refuse
from gpuloader.chain.link import Link
from gpuloader.chain.own import OwnCodeTargets
from gpuloader.chain.settings import Decoder
from gpuloader.errors import ConfigError
from gpuloader.loading.argument_types import AnyDevice
from gpuloader.loading.arguments import resolve_own_device
from gpuloader.loading.delivery import Images, by_view, finish
from gpuloader.loading.world import World
from gpuloader.plan import Draws
from gpuloader.recipe import AnyPreset, Recipe, load_preset, recipe_from_torchvision, recipe_yaml
from gpuloader.targets.dictionaries import OwnDictionaries, boxes_of, check_targets, move_targets

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Image: TypeAlias = "NDArray[np.uint8] | Picture | bytes | bytearray"
"""An image: an array uint8 (height, width, 3), a PIL image, or the bytes of a file."""
Kind = TypeVar("Kind", bound=Image)
NO_TARGETS, _DICTIONARIES = OwnCodeTargets(), OwnDictionaries()


class Compose(Recipe):
    """A recipe of transforms, named and set as in `torchvision.transforms.v2`.

    Pass it to a loader as `preset`, or call it on images. `print(compose)` shows it as YAML. The arguments are the same
    as for `gpuloader.recipe.Recipe`. `oversampling` works without smaller copies, which only loaders read.

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
        batch = given_batch(self, given, draws, boxes, listed)
        refuse({row: cause for row, cause in enumerate(batch.causes) if cause is not None})
        takes_targets = self.own_code is not None and self.own_code.takes_targets
        batch = self._chain.run(batch, resolve_own_device(device_id), _DICTIONARIES if takes_targets else NO_TARGETS)
        made = finish(self, [view[0] for view in batch.views] if one else list(batch.views))
        if listed is None:
            return made
        params, before = batch.params, batch.targets if takes_targets else [listed] * len(self.each_view)
        if self.own_code is not None and not takes_targets:
            params = self.draw(draws, batch.delivered.views[0].placements[0].shape, boxes=boxes)
        moved = [move_targets(*pair, batch.views[0][0].device) for pair in zip(before, params.views)]
        return made, by_view([view[0] for view in moved] if one else moved)

    def close(self) -> None:
        """Frees the memory of the last call's device. A later call takes it again; closing twice is fine."""
        self._chain.close()

    def __str__(self) -> str:
        return recipe_yaml(self)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_chain", "own_code", "graphs")
        }  # each process has its own

    @cached_property
    def _chain(self) -> KeptChain:
        return KeptChain(copy(self))  # a copy, so that the chain is freed with the recipe

    @classmethod
    def _of(cls, preset: Recipe) -> Compose:
        return cls(**{name: getattr(preset, name) for name in Recipe.__dataclass_fields__})


def chain_of(compose: Compose) -> KeptChain:
    """Returns what runs a recipe's graphs on opened images, for other packages."""
    return compose._chain  # noqa: SLF001 - this module is its class's


class KeptChain:
    """A recipe's chain, `Given < Decode [< Own < Decode]`, kept for the next calls with the same device and targets."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._lock = Lock()
        self._chains: dict[tuple[int | None, OwnCodeTargets], Link] = {}
        at_fork(self, KeptChain._renew_lock)

    def run(self, batch: Batch, device_id: int | None, targets: OwnCodeTargets) -> Batch:
        """Returns a batch of opened images with its views; raises DataError if an image cannot be decoded."""
        key = device_id, targets
        with self._lock:
            decoder = Decoder(prefetch=1).on(device_id, World.of_process().cores)
            if key not in self._chains:
                self._close()
                self._chains = {key: decoding(Given(), self._recipe, decoder, *key, runs_ahead=False)}
            chain = self._chains[key]
            try:
                oversampling = self._recipe.oversampling_on(device_id)
                chain.seek([prepare_images(batch, oversampling, decoder.num_threads or 1)])
                decoded = chain.next()
            except BaseException:
                chain.close()
                raise
        assert decoded is not None
        return decoded

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        for chain in self._chains.values():
            chain.close()
        self._chains.clear()

    def _renew_lock(self) -> None:
        self._lock = Lock()  # another thread may have held it in the parent


def _check_images(images: Sequence[Any]) -> None:
    encoded = [isinstance(image, (bytes, bytearray)) for image in images]
    if not images or any(encoded) != all(encoded):
        raise ConfigError(
            f"images: found {len(images)}, {sum(encoded)} of them bytes: give at least one, all arrays or all bytes"
        )
