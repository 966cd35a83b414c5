"""`tar` of several sources, `Sampling` and `shuffle` as a function: what they ask for, who gets it."""

from __future__ import annotations

import io
import itertools
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import spoilt
from making import SIZES, damaged_jpeg, jpeg, write_samples, write_shard

from gpuloader import BadImages, GPULoader, LabelFrom, Sampling, World
from gpuloader.errors import ConfigError, DataError, LabelError, StateError
from gpuloader.loading.loader import run_of
from gpuloader.loading.selection import resolve_sources
from gpuloader.loading.subset import Columns
from gpuloader.plan import Mix, Plan, Sampler, WeightedSampler
from gpuloader.shards import write_quarantine

pytestmark = pytest.mark.slow(kept=34, of="selection")

SAMPLES = 40
TRAIN = {"RandomResizedCrop": {"size": 32}}
EVALUATION = {"CenterCrop": {"size": 32}, "Resize": {"size": 36}}
HALVES = np.repeat([0.0, 1.0], 20)


def loader(tar: Any, batch_size: int = 8, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    given = {"preset": {"imagenet_eval": EVALUATION}, "output": "dict", **kwargs}
    return GPULoader(tar, batch_size, None, **given)


def sampling(tar: Any, **kwargs: Any) -> Sampler | Mix:  # noqa: ANN401
    with loader(tar, 1, **kwargs) as batches:
        assert batches.num_samples == run_of(batches).plan.source.size
        return run_of(batches).plan.source


def order_of(source: Sampler | Mix, seed: int = 0, epoch: int = 0) -> list[int]:
    """The samples of an epoch."""
    return Plan(source, 1, seed=seed).ids(epoch, np.arange(source.size)).tolist()


def ids_of(weighted: WeightedSampler) -> list[int]:
    return weighted.chosen.at(np.arange(len(weighted.weights))).tolist()


def sources(shards: list[Path]) -> list[dict[str, Any]]:
    """In the ratio of 3 to 1."""
    return [{"tar": shards[0], "weight": 3}, {"tar": shards[1]}]


def odd_labels(columns: dict[str, np.ndarray]) -> np.ndarray:
    return columns["label"] % 2 == 1


def rolled(epoch: int) -> np.ndarray:
    return np.roll(np.arange(0, SAMPLES, 3), epoch)


# --- several sources


def test_sources_are_their_shards_in_order_with_their_weights(shards: list[Path]) -> None:
    one, two = shards
    folder = one.parent
    assert resolve_sources(folder) == (shards, [])
    assert resolve_sources([one, str(two)]) == (shards, [])
    assert resolve_sources([{"tar": [two, one], "weight": np.float32(0.5)}]) == ([two, one], [(2, 0.5)])
    assert resolve_sources({"tar": one}) == ([one], [(1, 1)])
    assert resolve_sources(({"tar": two}, {"tar": str(one), "weight": np.int64(3)})) == ([two, one], [(1, 1), (1, 3)])


@pytest.mark.parametrize(
    ("tar", "message"),
    [
        ([{"tar": "a.tar", "wieght": 2}], r"tar: found {'tar': 'a.tar', 'wieght': 2} among several sources: allowed"),
        ([{"weight": 2}], "found {'weight': 2} among several sources"),
        ([{"tar": "a.tar"}, "b.tar"], "found 'b.tar' among several sources"),
        *(
            ([{"tar": "a.tar", "weight": weight}], r"tar: weight=.* of a.tar: allowed is a number above 0")
            for weight in (0, "2", True, None, float("nan"))
        ),
    ],
)
def test_sources_that_cannot_be_meant_are_refused(tar: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=message):
        resolve_sources(tar)


def test_sources_become_a_mix_of_their_samples(shards: list[Path], tmp_path: Path) -> None:
    three = write_samples(tmp_path, 7, shards=3)
    mixed = sampling([{"tar": shards, "weight": 0.5}, {"tar": tmp_path, "weight": 0.25}], shuffle="none")
    assert isinstance(mixed, Mix)
    assert (mixed.sizes, [each.parts for each in mixed.schedule], mixed.size) == ((40, 7), [(2, 1)], 47)
    assert order_of(mixed)[:9] == [0, 40, 1, 2, 41, 3, 4, 42, 5]
    assert sampling([{"tar": three}]).size == 7


def test_a_source_without_samples_is_named(shards: list[Path], tmp_path: Path) -> None:
    empty = write_shard(tmp_path / "empty.tar", [])
    with pytest.raises(ConfigError, match=r"the source that begins with .*empty\.tar has no samples: leave it out"):
        loader([{"tar": shards[0]}, {"tar": empty}, {"tar": shards[1]}])


# --- subsets


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        ([3, 1, 39], [3, 1, 39]),
        ((0,), [0]),
        (range(5, 8), [5, 6, 7]),
        (np.array([2, 1], np.uint8), [2, 1]),
        (torch.tensor([7, 9]), [7, 9]),
        (slice(None, None, -13), [39, 26, 13, 0]),
        (slice(None, 1000), list(range(40))),
        (odd_labels, list(range(1, 40, 2))),
        (lambda columns: (columns["shard"] == 1) & (columns["height"] > 70), [21, 26, 31, 36]),
        (lambda columns: torch.tensor(columns["width"]) == 97, list(range(3, 40, 5))),
        (["000003", "000001", "000039"], [3, 1, 39]),
        ("00001*", list(range(10, 20))),
        ("000038", [38]),  # a pattern may be a key
        ("*", list(range(40))),
    ],
)
def test_a_subset_is_the_samples_that_it_names(shards: list[Path], subset: Any, expected: list[int]) -> None:  # noqa: ANN401
    chosen = sampling(shards, sampling=Sampling(subset=subset), shuffle="none")
    assert order_of(chosen) == expected
    assert sorted(order_of(sampling(shards, sampling=Sampling(subset=subset), shuffle="full"))) == sorted(expected)


@pytest.mark.parametrize(
    ("subset", "message"),
    [
        ([], "subset: it selects none of 40 samples"),
        ([40], "subset: ids from 40 to 40: allowed is 0 to 39"),
        ([3, 4, 3], "subset: some samples occur twice: name each once, and use Sampling"),
        ([True] * 40, r"found bool of shape \(40,\).*np.flatnonzero turns bools into ids"),
        ("cat/*", "subset: no key matches 'cat/\\*'; a string is a pattern .* first here are '000000', '000001',"),
        (["000001", "a", "b", "c", "d"], r"subset: the data lacks 4 of 5 keys: 'a', 'b', 'c' \.\.\.\. A key is the"),
        (Path("nowhere/keys"), r"subset: nowhere/keys cannot be read \(No such file or directory\): it should be a"),
        (lambda columns: columns["lable"] == 3, r"no column 'lable' \(did you mean label\?\): allowed are label,"),
        ([[1], [2, 3]], "subset: numpy cannot make an array of it"),
        (lambda columns: [1, 2], r"subset: the function gave int64 of shape \(2,\): allowed is bool \(40,\)"),
    ],
)
def test_a_subset_that_cannot_be_meant_is_refused(shards: list[Path], subset: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=message):
        loader(shards, 1, sampling=Sampling(subset=subset))


def test_an_error_of_a_function_of_yours_is_yours(shards: list[Path]) -> None:
    with pytest.raises(KeyError, match="'of mine'"):
        loader(shards, 1, sampling=Sampling(subset=lambda columns: {}["of mine"]))


@pytest.mark.parametrize("name", ["keys.txt", "keys", "keys.csv"])
@pytest.mark.parametrize(
    "content", [b"000003\n000001\n", b"000003\r\n\r\n000001", b"\xef\xbb\xbf000003\n 000001 \n\n"], ids=repr
)
def test_a_file_names_a_key_on_each_line(shards: list[Path], tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    for subset in (file, *([str(file)] if name.endswith(".txt") else [])):  # as text it ends in .txt
        chosen = sampling(shards, sampling=Sampling(subset=subset), shuffle="none")
        assert chosen.order(0, 0)(np.arange(2)).tolist() == [3, 1]


def test_keys_are_those_of_webdataset_whatever_is_in_them(tmp_path: Path) -> None:
    keys = ["cat/ü", "dog/a b", "dog/deep/x", "v1.0/[x]", "dog/\udcff"]
    write_shard(tmp_path / "a.tar", [{"__key__": key, "jpg": jpeg(40, 40)} for key in keys[:-1]])
    with tarfile.open(tmp_path / "b.tar", "w", errors="surrogateescape") as tar:
        tar.addfile(tarfile.TarInfo(f"{keys[-1]}.jpg"), io.BytesIO())
    (tmp_path / "keys.txt").write_text("\n".join(reversed(keys)), "utf-8", "surrogateescape")
    for subset, expected in (
        (keys, [0, 1, 2, 3, 4]),
        (tmp_path / "keys.txt", [4, 3, 2, 1, 0]),
        ("dog/*", [1, 2, 4]),  # the folders in it too
        ("*/[[]x]", [3]),
        ("CAT/*", None),
    ):
        if expected is None:
            with pytest.raises(ConfigError, match="no key matches"):
                loader(tmp_path, 1, sampling=Sampling(subset=subset), label_from=None)
        else:
            chosen = sampling(tmp_path, sampling=Sampling(subset=subset), label_from=None, shuffle="none")
            assert chosen.order(0, 0)(np.arange(len(expected))).tolist() == expected


def test_a_key_of_two_samples_is_refused_by_name_and_taken_by_pattern(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_shard(tmp_path / f"{name}.tar", [{"__key__": key, "jpg": jpeg(40, 40)} for key in ("same", name)])
    with pytest.raises(
        ConfigError, match=r"the key 'same' has two samples, 0 in .*a\.tar and 2 in .*b\.tar: name such"
    ):
        loader(tmp_path, 1, sampling=Sampling(subset=["a", "same"]), label_from=None)
    assert sampling(tmp_path, sampling=Sampling(subset=["b"]), label_from=None).size == 1
    assert sampling(tmp_path, sampling=Sampling(subset="same"), label_from=None).size == 2


def test_a_function_of_the_columns_sees_what_the_index_knows(shards: list[Path]) -> None:
    with loader(shards) as batches:
        found = Columns(run_of(batches).shards)
        with pytest.raises(ValueError, match="read-only"):
            found["label"][:] = -1
        found |= {"shard": found["shard"]}
    sizes = [SIZES[i % len(SIZES)] for i in range(SAMPLES)]
    assert {name: column.dtype for name, column in found.items()} == {
        **dict.fromkeys(found, np.int64),
        **dict.fromkeys(("height", "width"), np.int32),
    }
    assert {name: column.tolist() for name, column in found.items()} == {
        "label": [i % 10 for i in range(SAMPLES)],
        "height": [height for height, _ in sizes],
        "width": [width for _, width in sizes],
        "size_bytes": [len(jpeg(*size, seed=i)) for i, size in enumerate(sizes)],
        "shard": [0] * 20 + [1] * 20,
    }


# --- weights


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"sampling": {"weights": list(range(SAMPLES)), "subset": [5, 2]}}, [5, 2]),
        ({"sampling": {"weights": {label: label / 2 for label in range(10)}}}, [i % 10 / 2 for i in range(40)]),
        (
            {"sampling": {"weights": {np.int64(0): 3, 1: 0, 2: np.float32(1), 77: 5}, "subset": [2, 10, 1, 12]}},
            [1, 3, 0, 1],
        ),
        ({"sampling": {"weights": "balanced"}}, [1 / 4] * 40),
        (
            {"sampling": {"weights": "balanced", "subset": [0, 1, 10, 11, 20, 5]}},
            [1 / 3, 1 / 2, 1 / 3, 1 / 2, 1 / 3, 1],
        ),
    ],
)
@pytest.mark.parametrize("label_from", ["cls", "json:label"])
def test_each_sample_has_the_weight_that_is_asked_for(
    shards: list[Path], given: dict[str, Any], expected: list[float], label_from: str
) -> None:
    weighted = sampling(shards, label_from=label_from, **given)
    assert isinstance(weighted, WeightedSampler)
    assert ids_of(weighted) == list(given["sampling"].get("subset", range(SAMPLES)))
    assert weighted.weights.tolist() == expected
    assert weighted.replacement


@pytest.mark.parametrize("replacement", [True, np.True_, False])
def test_replacement_says_whether_a_sample_can_come_again(shards: list[Path], replacement: bool) -> None:
    weighted = sampling(shards, sampling=Sampling(weights=HALVES, replacement=replacement))
    assert weighted.repeats == replacement
    assert weighted.size == (40 if replacement else 20)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampling": {"weights": [1, 2]}}, r"weights of shape \(2,\): allowed is one for each sample of the data,"),
        ({"sampling": {"weights": [*[1] * 39, -1]}}, "from -1.0 to 1.0: allowed are finite numbers"),
        ({"sampling": {"weights": ["many"] * 40}}, "weights: numpy cannot make an array of it: could not convert"),
        ({"sampling": {"weights": dict.fromkeys(range(9), 1)}}, r"no weight for the labels 9: give one for each"),
        ({"sampling": {"weights": dict.fromkeys("0123456789", 1)}}, "the names of the classes are not known: give"),
        ({"sampling": {"weights": "equal"}}, "weights='equal': allowed are a number for each sample, {label:"),
        ({"sampling": {"weights": "balanced"}, "label_from": None}, "weights are by label, but label_from=None"),
        (
            {"sampling": {"weights": HALVES}, "shuffle": rolled},
            "Sampling\\(weights=...\\) and shuffle=<function rolled",
        ),
        ({"sampling": {"weights": HALVES}, "shuffle": False}, "and shuffle=False cannot be combined: the weights draw"),
        ({"sampling": {"subset": [1]}, "shuffle": rolled}, "a function as shuffle and subset cannot be combined"),
        ({"sampling": {"groups": 4}}, 'groups=4: only shuffle="shards" has groups; use it, or leave groups out'),
        ({"sampling": {"subset": [1]}, "several": True}, "several sources and subset cannot be combined"),
        ({"sampling": {"weights": HALVES, "replacement": False}, "batch_size": 21}, "20 samples are fewer than one"),
    ],
)
def test_weights_that_cannot_be_meant_are_refused(shards: list[Path], given: dict[str, Any], message: str) -> None:
    tar = sources(shards) if given.pop("several", False) else shards
    with pytest.raises(ConfigError, match=message):
        loader(tar, **{"batch_size": 1, "last_batch": "drop", **given})


CLASSES = ["cat", "dog", *"01234567"]
NAMED = {name: number / 2 for number, name in enumerate(CLASSES)}


def test_weights_take_the_names_beside_the_shards_and_of_folders(tmp_path: Path) -> None:
    samples = [
        {"__key__": f"{kind}/{i}", "jpg": jpeg(40, 40), "cls": b"%d" % i} for i, kind in enumerate(("dog", "cat"))
    ]
    tar = write_shard(tmp_path / "pets.tar", samples)
    by_folder = sampling(tar, label_from="folder", sampling={"weights": {"cat": 9, "dog": 1}})
    (tmp_path / "classes.json").write_text('["dog", "cat"]')
    assert by_folder.weights.tolist() == [1, 9]
    assert sampling(tar, sampling={"weights": {"cat": 9, "dog": 1}}).weights.tolist() == [1, 9]


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({**NAMED, "dok": 1}, "weights: 'dok' is none of 10 classes: did you mean 'dog'?"),
        ({**NAMED, 0: 1}, "weights: a class occurs twice, by its name and by its label: give each once"),
        ({"cat": 9}, "weights: no weight for the labels 'dog', '0', '1', '2', '3', '4', '5', '6', '7': give"),
    ],
)
def test_weights_of_names_that_are_no_classes_are_refused(
    shards: list[Path], weights: dict[int | str, float], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        loader(shards, label_from=LabelFrom("cls", classes=CLASSES), sampling={"weights": weights})
    assert says in str(caught.value)


# --- components that some samples lack

LACKING = [3, *range(20, 25), 39]
"""The samples of `captioned` without a text. Of the sources, both have some; of the shards, too."""
CAPTIONED = [i for i in range(SAMPLES) if i not in LACKING]


@pytest.fixture(scope="module")
def captioned(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two shards like `shards`, but some samples have no text."""
    folder = tmp_path_factory.mktemp("captioned")
    samples = [
        {"__key__": f"{i:06d}", "jpg": jpeg(*SIZES[i % len(SIZES)], seed=i), "cls": b"%d" % (i % 10)}
        | ({} if i in LACKING else {"txt": b"number %d" % i})
        for i in range(SAMPLES)
    ]
    return [write_shard(folder / f"{name}.tar", samples[20 * n : 20 * n + 20]) for n, name in enumerate("ab")]


def test_every_field_that_is_lacking_is_named_at_once(tmp_path: Path) -> None:
    samples = [{"jpg": jpeg(40, 40), "txt": b"a"}, {"jpg": jpeg(40, 40), "json": b"{}"}]
    tar = write_shard(tmp_path / "a.tar", [{"__key__": f"{i}", **sample} for i, sample in enumerate(samples)])
    with pytest.raises(DataError) as caught:
        loader(tar, label_from=None, fields={"txt": None, ".JSON": None})
    assert "1 of 2 samples lack .txt ('1'); 1 of 2 samples lack .json ('0'). Leave" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"fields": ["text"]},
            "fields: no sample has a .text component \\(did you mean txt\\?\\): the data has .cls, .jpg",
        ),
        ({"sampling": {"require": ["txt"], "subset": [3, 20]}}, "require: no sample of the subset has all of .txt"),
        ({"sampling": {"require": ["txt"]}, "shuffle": rolled}, "require and a function as shuffle cannot be"),
        ({"shuffle": rolled, "fields": ["txt"]}, r"^fields: 4 of 40 samples lack .txt \('000003', '000021',"),
    ],
)
def test_components_that_nothing_has_are_refused(captioned: list[Path], given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError if {"shuffle", "fields"} <= given.keys() else ConfigError, match=message):
        loader(captioned, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"sampling": {"require": ["txt"]}},
        {"sampling": {"require": [".TXT", "cls"]}, "shuffle": "full"},
        {"sampling": {"weights": [float(i not in LACKING) for i in range(SAMPLES)]}},
        {"shuffle": lambda epoch: np.roll(CAPTIONED, epoch)},
        {"on_error": BadImages(known="known.jsonl")},  # of all that lack it
    ],
    ids=["require", "written otherwise", "weights", "function", "known to be bad"],
)
def test_what_the_plan_never_delivers_may_lack_a_field(
    captioned: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    with loader(captioned) as batches:
        write_quarantine(Path("known.jsonl"), run_of(batches).shards, dict.fromkeys(LACKING, "known"))
    with loader(captioned, fields=["txt"], **given) as batches:
        for batch in batches:
            assert batch["txt"] == [f"number {i}" for i in batch["index"].tolist()]


@pytest.mark.parametrize("subset", [None, slice(None, None, -1), [39, 3, 7], "00002*", odd_labels])
def test_require_is_a_subset_of_what_is_there(captioned: list[Path], subset: Any) -> None:  # noqa: ANN401
    def order(**given: Any) -> list[int]:  # noqa: ANN401
        with loader(captioned, shuffle="none", sampling=given) as batches:
            return [i for batch in batches for i in batch["index"].tolist()]

    assert order(subset=subset, require=["txt"]) == [i for i in order(subset=subset) if i not in LACKING]


def test_each_shuffle_and_the_weights_leave_out_what_lacks_it(captioned: list[Path]) -> None:
    require = {"sampling": {"require": ["txt"]}}
    for shuffle in ("full", "block", "shards"):
        order = sampling(captioned, shuffle=shuffle, **require)
        assert sorted(order_of(order, 0, 1)) == CAPTIONED
    mixed = sampling(sources(captioned), shuffle="none", **require)
    assert order_of(mixed)[:8] == [0, 1, 25, 2, 4, 5, 26, 6]
    weighted = sampling(captioned, sampling={"require": ["txt"], "weights": "balanced", "subset": [1, 3, 11, 2]})
    assert isinstance(weighted, WeightedSampler)
    assert (ids_of(weighted), weighted.weights.tolist()) == ([1, 11, 2], [0.5, 0.5, 1.0])
    weighted = sampling(captioned, sampling={"require": ["txt"], "weights": np.arange(SAMPLES)})
    assert isinstance(weighted, WeightedSampler)
    assert (ids_of(weighted), weighted.weights.tolist()) == (CAPTIONED, CAPTIONED)


def test_requiring_what_all_have_changes_nothing(captioned: list[Path]) -> None:
    with loader(captioned, sampling={"require": ["jpg", "cls"]}) as required, loader(captioned) as batches:
        required.load_state_dict(batches.state_dict())


def test_samples_without_a_label_can_be_left_out(tmp_path: Path) -> None:
    """In the first, all have another one, too: numbers of classes do not depend on what is left out."""
    rows: list[dict[str, bytes]] = [
        {"cls": b"4", "json": b'{"a": 1}'},
        {"json": b'{"a": 2}'},
        {"cls": b"6"},
        {"cls": b"7", "json": b'{"a": 3}'},
    ]
    keys = ["b/0", "1", "a/2", "b/3"]
    tar = write_shard(
        tmp_path / "a.tar", [{"__key__": key, "jpg": jpeg(40, 40), **row} for key, row in zip(keys, rows)]
    )

    def labels(label_from: Any, **given: Any) -> list[int]:  # noqa: ANN401
        with loader(tar, 4, label_from=label_from, sampling=given) as batches:
            return next(iter(batches))["label"].tolist()

    assert labels("cls", require=["cls"]) == labels("cls", subset=[0, 2, 3]) == [4, 6, 7]
    assert labels("json:a", require=["json"]) == labels("json:a", subset=[0, 1, 3]) == [1, 2, 3]
    assert labels("folder", require=["cls"]) == labels("folder", subset=[0, 2, 3]) == [1, 0, 1]
    named = LabelFrom("folder", ["x", "b"])
    assert labels(named, require=["cls", "json"]) == labels(named, subset=[0, 3]) == [1, 1]
    with pytest.raises(LabelError, match=r"1 of 4 .*: '1' in .*\. Sampling\(require=\['cls'\]\) leaves such"):
        labels("cls")
    with pytest.raises(LabelError, match="1 of 4 samples are in folders of unknown classes: 'a/2'"):
        labels(named, require=["cls"])


# --- end to end

KINDS: dict[str, dict[str, Any]] = {
    "subset": {"sampling": {"subset": odd_labels}, "shuffle": "full"},
    "weighted": {"sampling": {"weights": {label: label for label in range(10)}}},
    "weighted without replacement": {"sampling": {"weights": "balanced", "replacement": False, "subset": slice(3, 25)}},
    "sources": {"shuffle": "block"},
    "function": {"shuffle": rolled},
    "require": {"sampling": {"require": ["txt"]}, "shuffle": "full"},
    "require of shards": {"sampling": {"require": ["txt"], "groups": 4}, "shuffle": "shards"},
    "subset of shards": {"sampling": {"subset": [30, 2, *range(9, 25)], "groups": 4}, "shuffle": "shards"},
    "shards of sources": {"sampling": {"groups": 2}, "shuffle": "shards"},
    "require of sources": {"sampling": {"require": ["txt"]}, "shuffle": "block"},
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def tar_of(kind: str, shards: list[Path], captioned: list[Path]) -> Any:  # noqa: ANN401
    tar = captioned if kind.startswith("require") else shards
    return sources(tar) if kind.endswith("sources") else tar


def delivered(batch: dict[str, Any]) -> list[int]:
    """The ids of a batch, less the padding; each must come with its own key and label."""
    ids = batch["index"].tolist()
    assert batch["key"] == [f"{sample:06d}" for sample in ids]
    assert batch["label"].tolist() == [sample % 10 for sample in ids]
    return [sample for sample, valid in zip(ids, batch["valid"].tolist(), strict=True) if valid]


def steps_of(
    tar: Any,  # noqa: ANN401
    batch_size: int,
    world_size: int,
    epochs: int = 1,
    **kwargs: Any,  # noqa: ANN401
) -> list[list[int]]:
    """The ids of each step, those of all ranks together; every rank must take the same number of steps."""
    ranks = []
    for rank in range(world_size):
        with loader(tar, batch_size, world=World(rank, world_size), **kwargs) as batches:
            ranks.append([delivered(batch) for _ in range(epochs) for batch in batches])
    return [list(itertools.chain(*step)) for step in zip(*ranks, strict=True)]


@each_kind
@pytest.mark.parametrize(
    ("world_size", "batch_size", "last_batch"), [(1, 8, "partial"), (2, 4, "pad"), (4, 2, "equal")]
)
@pytest.mark.slow(kept=8)
def test_every_id_comes_where_the_sampling_has_it(
    shards: list[Path], captioned: list[Path], kind: str, world_size: int, batch_size: int, last_batch: str
) -> None:
    tar, options = tar_of(kind, shards, captioned), {"seed": 3, **KINDS[kind]}
    expected = sampling(tar, **options)
    steps = steps_of(tar, batch_size, world_size, epochs=2, last_batch=last_batch, **options)
    orders = [order_of(expected, 3, epoch) for epoch in range(2)]
    wanted = [order[start : start + 8] for order in orders for start in range(0, len(order), 8)]
    if options.get("shuffle") == "shards":  # a step is sorted by group
        steps, wanted = ([sorted(step) for step in each] for each in (steps, wanted))
    assert steps == wanted


def test_a_state_of_another_sampling_is_refused(shards: list[Path]) -> None:
    others = [
        (shards, {"shuffle": "full"}),
        (shards, {"shuffle": "full", "sampling": {"subset": slice(39)}}),
        (shards, {"sampling": {"weights": HALVES}}),
        (shards, {"sampling": {"weights": HALVES, "replacement": False}}),
        (sources(shards), {"shuffle": "full"}),
        (shards, {"shuffle": rolled}),
        (shards, {"shuffle": lambda epoch: rolled(epoch)[::-1]}),
    ]
    loaders = [loader(tar, 1, **options) for tar, options in others]
    for one, other in itertools.permutations(loaders, 2):
        state = {**other.state_dict(), "delivered": 1}
        if "ratios" in state:
            state["ratios"] = [[0, list(run_of(other).plan.source.schedule[0].parts)]]  # type: ignore[union-attr]
        says = r"saved with another sampling: it was|the state has (sampling|shuffle)=|weights may change from a later"
        with pytest.raises(StateError, match=says):
            one.load_state_dict(state)
    for one in loaders:
        one.load_state_dict(one.state_dict())
        one.close()


def test_short_epochs_go_on_and_copies_of_a_sample_come_together(shards: list[Path]) -> None:
    order = order_of(sampling(sources(shards), shuffle="full"))
    steps = steps_of(sources(shards), 4, 2, epochs=2, shuffle="full", sampling=Sampling(steps_per_epoch=2))
    assert steps == [order[start : start + 8] for start in range(0, 32, 8)]
    order = order_of(sampling(shards, shuffle="full"))
    steps = steps_of(shards, 3, 2, shuffle="full", last_batch="drop", sampling=Sampling(repeats=3))
    assert list(itertools.chain(*steps)) == [sample for sample in order[:12] for _ in range(3)]


def test_a_sample_that_comes_again_is_augmented_otherwise(shards: list[Path]) -> None:
    train = {"preset": {"imagenet_train": TRAIN}, "sampling": {"subset": [6, 7]}, "last_batch": "partial"}
    for options in (
        {"sampling": {"weights": [1] * 40}},
        {"shuffle": lambda epoch: [6, 7] * 4, "sampling": {"subset": None}},
    ):
        given = {**train, **options}
        whole: list[torch.Tensor] = []
        for batch_size in (1, 8):
            with loader(shards, batch_size, **given) as batches:
                for _ in range(4):
                    whole += [image for batch in batches for image in batch["image"]]
        alone, together = whole[: len(whole) // 2], whole[len(whole) // 2 :]
        assert len(alone) >= 8
        assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
        assert not any(torch.equal(one, other) for one, other in itertools.combinations(alone, 2))


# --- bad images


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": {"subset": [30, 33, 36, 39]}},
        {"sampling": {"weights": [*[0] * 30, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1], "replacement": False}},
        {"shuffle": lambda epoch: np.roll([30, 33, 36, 39], epoch)},
    ],
    ids=["subset", "weighted without replacement", "function"],
)
def test_replacements_are_of_the_sampling_too(tmp_path: Path, options: dict[str, Any]) -> None:
    tar, file = spoilt(tmp_path, {33: b"<html>", 36: damaged_jpeg()}), tmp_path / "bad.jsonl"
    stood_in = 0
    with loader(tar, 4, on_error=BadImages(replace=True, max_share=0.1), last_batch="partial", **options) as batches:
        for _ in range(4):
            for batch in batches:
                assert set(batch["index"].tolist()) <= {30, 39}
                stood_in += (~batch["valid"]).sum().item()
        assert set(batches.stats().bad) == {33, 36}
        batches.write_quarantine(file)
        state = batches.state_dict()
    assert stood_in >= 4
    with loader(tar, 4, on_error=BadImages(replace=True, max_share=0.1), last_batch="partial", **options) as resumed:
        resumed.load_state_dict(state)  # it names samples beyond the number of those that come
        assert set(resumed.stats().bad) == {33, 36}
    with loader(tar, 4, on_error=BadImages(known=file), last_batch="partial", **options) as known:
        assert {i for batch in known for i in batch["index"].tolist()} <= {30, 39}


# --- pickling


@each_kind
def test_a_loader_with_them_can_be_pickled(shards: list[Path], captioned: list[Path], kind: str) -> None:
    with loader(tar_of(kind, shards, captioned), 2, **KINDS[kind]) as batches:
        batches.set_epoch(2)
        with pickle.loads(pickle.dumps(batches)) as other:
            assert other.state_dict() == batches.state_dict()
            assert [delivered(batch) for batch in other] == [delivered(batch) for batch in batches]
