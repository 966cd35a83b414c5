"""What a notebook shows of a recipe: a table of plain text, with the recipe's own words."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from gpuloader import Compose
from gpuloader.recipe import Mix, Recipe
from gpuloader.transforms import ColorJitter, Normalize, RandomApply, RandomHorizontalFlip, RandomResizedCrop, View

Row = list[str]


class Table(HTMLParser):
    """The texts of a table's cells, and every tag and attribute that it has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= set(attrs)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.rows[-1][-1] += data


CROP, FLIP = RandomResizedCrop(32), RandomHorizontalFlip()
STRANGE = type("<script>alert(1)</script>&amp;", (RandomHorizontalFlip,), {})


@pytest.mark.parametrize(
    ("recipe", "rows"),
    [
        (Compose([CROP, FLIP]), [["RandomResizedCrop", "size: 32"], ["RandomHorizontalFlip", ""]]),
        (Recipe([CROP, Normalize([0.5] * 3, [0.25] * 3)]), [
            ["RandomResizedCrop", "size: 32"],
            ["Normalize", "mean: [0.5, 0.5, 0.5], std: [0.25, 0.25, 0.25]"],
        ]),
        (Compose([RandomResizedCrop({0: 24, 5: 32})]), [["RandomResizedCrop", "size: {0: 24, 5: 32}"]]),
        (Compose([CROP, RandomApply([ColorJitter(0.4)], p=0.3)]), [
            ["RandomResizedCrop", "size: 32"],
            ["RandomApply", "transforms: [{ColorJitter: {brightness: 0.4}}], p: 0.3"],
        ]),
        (Compose([CROP], mix=Mix(10, cutmix_alpha=1.0), layout="channels_last"), [
            ["RandomResizedCrop", "size: 32"],
            ["key", "value"],
            ["mix", "num_classes: 10, cutmix_alpha: 1.0"],
            ["layout", "channels_last"],
        ]),
        (Compose([CROP], views=2), [["RandomResizedCrop", "size: 32"], ["key", "value"], ["views", "2"]]),
        (Compose([STRANGE(), CROP]), [["<script>alert(1)</script>&amp;", ""], ["RandomResizedCrop", "size: 32"]]),
    ],
    ids=["flip", "lists", "sizes", "nested", "keys", "views", "hostile"],
)  # fmt: skip
def test_a_recipe_is_a_table_of_its_transforms_and_keys(recipe: Recipe, rows: list[Row]) -> None:
    table = Table(recipe._repr_html_())
    assert table.rows == [["transform", "arguments"], *rows]
    assert table.tags == {"table", "tr", "th", "td"}
    assert table.attributes == {("style", "text-align: left")}  # no colours: it is read in the light and in the dark


def test_each_view_has_a_heading() -> None:
    recipe = Compose(views=[View([CROP]), View([FLIP, CROP], count=8), View([CROP])])
    assert Table(recipe._repr_html_()).rows == [
        ["view 0", "arguments"],
        ["RandomResizedCrop", "size: 32"],
        ["views 1 to 8", "arguments"],
        ["RandomHorizontalFlip", ""],
        ["RandomResizedCrop", "size: 32"],
        ["view 9", "arguments"],
        ["RandomResizedCrop", "size: 32"],
    ]
