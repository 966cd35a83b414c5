"""`Target`: a component that is transformed with the image, such as boxes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from gpuloader.errors import ConfigError
from gpuloader.loading.fields import Component, Ragged, under
from gpuloader.recipe import AugmentParams, Recipe, ViewParams
from gpuloader.recipe.program import Op


class Target(Component):
    """A location in the image, transformed with the image."""

    is_target: ClassVar[bool] = True
    may_repeat: ClassVar[bool] = False
    """Whether the target is compatible with padding that repeats pixels."""

    @property
    def may_be_pasted(self) -> bool:
        """Whether CutMix may paste a rectangle of the target from another sample."""
        return False

    def resolve(self) -> Self:
        return self

    def check_recipe(self, recipe: Recipe) -> None:
        """Checks that the target is compatible with the recipe.

        Raises:
            ConfigError: the recipe blends images; or it pastes parts of other images, and this is not a class mask.
        """
        if recipe.mix is not None and not (self.may_be_pasted and recipe.mix.only_pastes):
            kind, name = "MixUp, which blends two images" if self.may_be_pasted else "`mix`", type(self).__name__
            raise ConfigError(
                f"{name} cannot follow {kind}: allowed are recipes without `mix`, and for masks of classes CutMix alone"
            )
        check_recipe_moves(recipe, repeats=self.may_repeat)

    @property
    def keys_of_annotations(self) -> Iterable[tuple[str, str]]:
        """The options that name keys of each annotation, as (option, key)."""
        return ()

    def named_keys(self, document: Any) -> Iterator[tuple[str, str, Collection[str]]]:  # noqa: ANN401
        listed = under(self.path, document, required=False) if self.path else []
        if listed != []:
            yield from super().named_keys(document)
        for annotation in listed if isinstance(listed, list) else ():
            if isinstance(annotation, dict):
                yield from ((option, key, annotation.keys()) for option, key in self.keys_of_annotations)

    def annotations(self, document: Any) -> Any:  # noqa: ANN401
        """Returns the annotations under the path in a sample's JSON; [] if there are none and none are `required`."""
        found = under(self.path, document, self.required)
        return [] if found is None and not self.required else found

    def collated(self, values: list[Any], params: AugmentParams) -> dict[str, list[Any]]:
        views = [dict(self.moved(values, view)) for view in params.views]
        return {name: [view[name] for view in views] for name in ("", *self.columns)}

    def entries(self, value: Any, view: ViewParams) -> dict[str, NDArray[Any]]:  # noqa: ANN401
        """Returns the entries of one sample in a view of this sample alone: the value under "", and its columns."""
        entries = {}
        for name, entry in self.moved([value], view):
            if not isinstance(entry, Ragged):
                entries[name] = entry[0]
            else:
                entries[name] = entry.values if entry.shapes is None else entry.values.reshape(entry.shapes[0])
        return entries

    @abstractmethod
    def value_of(self, entries: Mapping[str, NDArray[Any]]) -> Any:  # noqa: ANN401
        """Converts entries, as own code returned them, to a value; raises ValueError if they are invalid."""

    @abstractmethod
    def moved(self, values: Sequence[Any], view: ViewParams) -> Iterator[tuple[str, Any]]:
        """Yields (name, entry) for a view, each entry an array or `Ragged`."""


def samples_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the sample number of each row, (N,), for samples with these numbers of rows, (n,)."""
    return np.repeat(np.arange(len(counts)), counts)


def check_recipe_moves(recipe: Recipe, *, repeats: bool = False) -> None:
    """Checks that targets are compatible with the geometry of the recipe.

    Args:
        repeats: allows padding that repeats pixels, as for masks.

    Raises:
        ConfigError: the recipe blends warped images, or its padding repeats parts of the picture.
    """
    for own, view in () if recipe.own_code is None else zip(recipe.own_code.functions, recipe.graphs[1].views):
        if own is not None and not own.targets and (view.by_boxes or not own.same_size):
            cause = f"{view.by_boxes} after it needs boxes" if view.by_boxes else "it changes sizes"
            raise ConfigError(
                f"targets cannot follow {own.called}, because {cause}: use Apply(..., targets=True), and return the "
                f"targets with the image"
            )
    for view in recipe.each_view:
        if any(Op.MIX_BEGIN in choices for choices in view.choices):
            raise ConfigError(
                "AugMix blends several warped copies of an image, so its targets have no one place: take RandAugment, "
                "TrivialAugmentWide or AutoAugment, or leave AugMix out"
            )
        if view.how_placed.repeats and not repeats:
            raise ConfigError(
                f"padding_mode={view.how_placed.padding_mode!r} repeats parts of objects, which then have no boxes or "
                f'points: with boxes or points allowed is "constant"'
            )
