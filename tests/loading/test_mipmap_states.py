"""The recipe's key `oversampling` in a loader's state, and what a loader says of smaller copies when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import jpeg, write_shard

from gpuloader import Compose, GPULoader
from gpuloader import transforms as T
from gpuloader.errors import StateError
from gpuloader.loading.mipmaps import warn_of_oversampling
from gpuloader.shards import ShardSet

CROP = [T.RandomResizedCrop(16)]
LARGE, SMALL = (1400, 1600), (40, 60)


def shard(path: Path, with_mipmaps: Sequence[int] = (), size: tuple[int, int] = SMALL, count: int = 8) -> Path:
    """Samples, those with these numbers with a copy of a tenth of a side."""
    side, image = size[0] // 10, jpeg(*size)
    copy = jpeg(side, side * size[1] // size[0])
    samples = [
        {
            "__key__": f"{path.stem}/{n}",
            "jpg": image,
            "cls": b"1",
            **({f"mip{side}": copy} if n in with_mipmaps else {}),
        }
        for n in range(count)
    ]
    return write_shard(path, samples)


def loader(tars: Any, mipmaps: Any = None, transforms: Any = CROP, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    return GPULoader(tars, 2, None, preset=Compose(transforms, oversampling=mipmaps), **kwargs)


def state_of(tars: Any, mipmaps: Any = None) -> dict[str, Any]:  # noqa: ANN401
    with loader(tars, mipmaps) as one:
        return one.state_dict()


def load(state: dict[str, Any], tars: Any, mipmaps: Any = None) -> dict[str, Any]:  # noqa: ANN401
    with loader(tars, mipmaps) as one:
        one.load_state_dict(state)
        return one.state_dict()


@pytest.fixture
def tars(tmp_path: Path) -> dict[str, Path]:
    """The same samples with copies of none, some and all."""
    kinds = {"none": [], "some": [1, 4, 5], "all": range(8)}
    for kind in kinds:
        (tmp_path / kind).mkdir()
    return {kind: shard(tmp_path / kind / "a.tar", chosen) for kind, chosen in kinds.items()}


def test_a_state_without_the_key_is_as_before_whatever_mipmaps_there_are(tars: dict[str, Path]) -> None:
    states = [state_of(tar, off) for tar in tars.values() for off in (None, "off")]
    assert all("mipmaps" not in state and "oversampling" not in state["described"]["recipe"] for state in states)
    for tar in tars.values():  # packing copies does not end a run that takes none
        assert load(states[0], tar, "off") == states[0]


def test_with_the_key_a_state_goes_on_with_the_same_mipmaps_alone(tars: dict[str, Path]) -> None:
    states = {kind: state_of(tar, 1.5) for kind, tar in tars.items()}
    assert len({state["mipmaps"] for state in states.values()}) == 3
    for kind, state in states.items():
        for other, tar in tars.items():
            if kind == other:
                assert load(state, tar, 1.5) == state
                continue
            with pytest.raises(StateError, match="saved with other smaller copies beside the same pictures"):
                load(state, tar, 1.5)


@pytest.mark.parametrize(("saved", "now"), [(None, 1.5), ("off", 1.5), (1.5, None), (1.5, "off"), (1.5, 2)])
def test_another_value_of_the_key_is_another_recipe(tars: dict[str, Path], saved: Any, now: Any) -> None:  # noqa: ANN401
    was, is_ = ("absent" if each in (None, "off") else float(each) for each in (saved, now))
    with pytest.raises(StateError, match=rf"saved with another recipe: oversampling was {was}, is {is_}\."):
        load(state_of(tars["some"], saved), tars["some"], now)


def test_shards_are_appended_with_mipmaps_or_without(tmp_path: Path) -> None:
    first, second, third = (
        shard(tmp_path / f"{name}.tar", chosen) for name, chosen in (("a", [1, 4]), ("b", range(8)), ("c", ()))
    )
    state = state_of([first], 1.5)
    assert load(state, [first, second], 1.5)["mipmaps"] == state_of([first, second], 1.5)["mipmaps"]
    load(state, [first, second, third], 1.5)
    shard(first, [1, 5])
    with pytest.raises(StateError, match="other smaller copies"):
        load(state, [first, second], 1.5)


# What is said.


def said(caplog: pytest.LogCaptureFixture, *arguments: Any) -> list[str]:  # noqa: ANN401
    caplog.clear()
    with loader(*arguments):
        return [message for message in caplog.messages if "copies" in message]


def test_mipmaps_that_a_recipe_could_take_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tar = shard(tmp_path / "a.tar", [0, 2, 3], LARGE, 4)  # of a shorter side of 140
    [line] = said(caplog, tar)
    assert line.startswith("3 pictures have smaller copies")
    assert "set `oversampling: 1.5`" in line
    [line] = said(caplog, tar, None, [T.RandomResizedCrop({0: 16, 9: 224}), T.Apply(np.ascontiguousarray)])
    silent = [
        (tar, 1.5),
        (tar, "off"),
        (tar, None, [T.RandomResizedCrop(224)]),  # for which no copy is sharp enough
        (tar, None, [T.Resize((16, 16), antialias=False)]),  # which can take none
        (tar, None, [T.Pad(9, padding_mode="reflect"), T.Resize((16, 16))]),
        (tar, None, [T.CenterCrop(16)]),
        (shard(tmp_path / "b.tar"),),
    ]
    for arguments in silent:
        assert said(caplog, *arguments) == []


def test_pictures_that_could_have_mipmaps_are_counted_where_a_gpu_decodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edge = shard(tmp_path / "a.tar", size=(1280, 1300), count=3)  # 1.25 times 1024
    small = shard(tmp_path / "b.tar", size=(1279, 1300), count=3)
    recipe = Compose(CROP, oversampling=1.5)
    for tars, expected in (
        ([edge, small], ["3 pictures"]),
        ([small], []),
    ):  # such as an evaluation's, on the same recipe
        caplog.clear()
        warn_of_oversampling(recipe, ShardSet.open(tars), on_cpu=False)
        assert [line.rpartition(" of ")[2] for line in caplog.messages] == expected
    assert said(caplog, [edge], 1.5) == said(caplog, [edge]) == said(caplog, [edge], "off") == []
