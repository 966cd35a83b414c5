"""Collators: what becomes of the components beside the images, alone and in a loader's batches."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import jpeg, write_shard

from gpuloader import Field, GPULoader, OneOf, collators
from gpuloader.collators import REFUSALS
from gpuloader.errors import BadImageError, ConfigError, DataError

OVERRIDES = {"CenterCrop": {"size": 32}, "Resize": {"size": 36}}


def npy(array: Any) -> bytes:  # noqa: ANN401
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def npy_header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    """An array file that is said to have some shape, and has 8 bytes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(8)


def npy_text(header: str) -> bytes:
    """An array file with some text as its header."""
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header.encode() + bytes(8)


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, np.arange(3))
    return file.getvalue()


def same(one: Any, other: Any) -> bool:  # noqa: ANN401
    """Whether two values are alike, with the types of their arrays."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and set(one) == set(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return bool(type(one) is type(other) and one == other)


def loader(tar: Any, batch_size: int = 2, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    given = {"label_from": None, "preset": {"imagenet_eval": OVERRIDES}, "output": "dict", **kwargs}
    return GPULoader(tar, batch_size, None, **given)


def shard(folder: Path, extension: str, components: Sequence[bytes]) -> Path:
    """A shard of one sample for each component; its keys are 0, 1, ..."""
    samples = [{"__key__": f"{i}", "jpg": jpeg(40, 40), extension: data} for i, data in enumerate(components)]
    return write_shard(folder / "a.tar", samples)


def first_of(tar: Path, **kwargs: Any) -> Any:  # noqa: ANN401
    with loader(tar, **kwargs) as batches:
        return next(iter(batches))


# --- what each makes


@pytest.mark.parametrize(
    ("collator", "components", "expected"),
    [
        (collators.as_bytes, [b"\0\1", b""], [b"\0\1", b""]),
        (collators.as_json, [b'{"a": [1, null]}', b"3", '\ufeff"ü"'.encode()], [{"a": [1, None]}, 3, "ü"]),
        (collators.as_text, ["grüße\n".encode(), b""], ["grüße\n", ""]),
        (collators.as_integers, [b"7", b" -3\n", b"+9223372036854775807"], np.array([7, -3, 2**63 - 1], np.int64)),
        (collators.as_floats, [b"7", b" -0.5\n", b"1e-3"], np.array([7, -0.5, 1e-3], np.float32)),
        (collators.as_floats, [b"inf", b"-inf"], np.array([np.inf, -np.inf], np.float32)),
        (collators.as_vectors, [b"1 2.5 -3"], np.array([[1, 2.5, -3]], np.float32)),
        *(
            (collators.as_vectors, [text], np.array([[1, 2]], np.float32))
            for text in (b"1,2", b" 1 , 2\n", b"1\t2\r\n", b"[1, 2]", b"[\n  1,\n  2\n]\r\n", b"1e0 2.")
        ),
        (collators.as_vectors, [b"[5]", b"6\n"], np.array([[5], [6]], np.float32)),
        (collators.as_arrays, [npy([1, 2]), npy([[True]])], [np.array([1, 2]), np.array([[True]])]),
        (collators.stacked, [npy([1.5, 2]), npy([3, 4.5])], np.array([[1.5, 2], [3, 4.5]])),
        (collators.stacked, [npy(3), npy(4)], np.array([3, 4])),
        (collators.stacked, [npy(np.array([1, 2], ">f4"))] * 2, np.array([[1, 2]] * 2, np.float32)),
        (collators.stacked, [npy(np.asfortranarray([[1, 2], [3, 4]]))], np.array([[[1, 2], [3, 4]]])),
        (collators.stacked, [npy(np.zeros((0, 4), np.uint8))] * 3, np.zeros((3, 0, 4), np.uint8)),
        (
            collators.padded,
            [npy(np.array([[1, 2]], np.float16)), npy(np.ones((3, 2), np.float16)), npy(np.ones((0, 2), np.float16))],
            {
                "values": np.array([[[1, 2], [0, 0], [0, 0]], [[1, 1]] * 3, [[0, 0]] * 3], np.float16),
                "lengths": np.array([1, 3, 0]),
            },
        ),
        (
            collators.padded,
            [npy(np.array([1, 2], np.uint8)), npy(np.array([-1], np.int16))],
            {"values": np.array([[1, 2], [-1, 0]], np.int16), "lengths": np.array([2, 1])},
        ),
    ],
)
def test_a_collator_makes_what_it_says(collator: collators.Collator, components: list[bytes], expected: Any) -> None:  # noqa: ANN401
    assert same(collator(components), expected)


@pytest.mark.parametrize(
    ("collator", "component", "message"),
    [
        (collators.as_json, b"{", "Expecting property name"),
        (collators.as_json, b"", "Expecting value"),
        (collators.as_json, b"\xff\xfe\xfd", "codec can't decode"),
        (collators.as_json, b"[" * 100_000, "recursion|Stack overflow"),
        (collators.as_text, b"\xff", "codec can't decode"),
        (collators.as_integers, b"7.5", "invalid literal"),
        (collators.as_integers, b"", "invalid literal"),
        (collators.as_integers, b"9223372036854775808", "too large"),
        (collators.as_floats, b"x" * 10**6, "could not convert string to float: b'xxx"),
        (collators.as_floats, b"1e39", "overflow"),
        (collators.as_vectors, b"1,,2", "could not convert string to float: ''"),
        (collators.as_vectors, b"", "could not convert string to float: ''"),
        (collators.as_vectors, b"[[1, 2], [3, 4]]", "could not convert string to float"),
        (collators.as_vectors, b"1 1e39", "overflow"),
        *(
            (collator, component, message)
            for collator in (collators.as_arrays, collators.stacked, collators.padded)
            for component, message in (
                (b"", "EOF"),
                (b"text, not an array", "magic string"),
                (npz(), "magic string"),
                (pickle.dumps([1]), "magic string"),
                (npy([1, 2])[:-1], "int64, needs 16 bytes, but there are 15"),
                (npy_header((10**12,)), "float32, needs 4,000,000,000,000 bytes, but there are 8"),
                (npy_header((-1,)), r"shape \(-1,\) and dtype float32 \(4 bytes\) is not allowed"),
                (npy_header((2, True)), r"shape \(2, True\) and dtype float32 \(4 bytes\) is not allowed"),
                # Nothing is read of these, and a copy of them never ends.
                (npy_header((10**12,), "|V0"), r"shape \(1000000000000,\) and dtype \|V0 \(0 bytes\) is not allowed"),
                (npy_header((10**12,), "<U0"), r"dtype <U0 \(0 bytes\) is not allowed"),
                (npy_header((1,), "|O"), "Python objects, which are never unpickled"),
                (npy_text("{'descr': '<f4', 'shape': (2,"), "header of the array cannot be parsed"),
                (npy_text("  {'descr'\n x"), "header of the array cannot be parsed"),
                (npy_text("{{}: 1}"), "header of the array cannot be parsed"),
                (npy_text("-" * 9000 + "1"), "header of the array cannot be parsed"),
            )
        ),
        *(
            (collator, npy(array), r"an array of .* cannot become a tensor: use `as_arrays`")
            for collator in (collators.stacked, collators.padded)
            for array in (["ab", "c"], [b"x"], np.zeros(2, "M8[s]"), np.zeros(2, np.longdouble), np.zeros(2, "i4,f4"))
        ),
        (collators.padded, npy(3), r"an array of shape \(\) cannot be padded"),
    ],
)
def test_what_a_collator_cannot_take_is_named_with_its_sample(
    tmp_path: Path, collator: collators.Collator, component: bytes, message: str
) -> None:
    with pytest.raises(REFUSALS, match=message):
        collator([component])
    good = npy([1, 2]) if collator in (collators.as_arrays, collators.stacked, collators.padded) else b"1"
    tar = shard(tmp_path, "data", [good, good, good, component])
    with loader(tar, fields={"data": collator}) as batches:
        epoch = iter(batches)
        next(epoch)
        with pytest.raises(BadImageError, match=rf"the \.data component beside it: .*{message}") as caught:
            next(epoch)
        assert (caught.value.shard, caught.value.key) == (str(tar), "3")
        assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("collator", "components", "message"),
    [
        (collators.as_vectors, [b"1 2", b"1 2 3"], r"vectors of \[2, 3\] numbers cannot be stacked"),
        (collators.stacked, [npy([1]), npy([1, 2])], r"arrays of shapes \[\(1,\), \(2,\)\] cannot be stacked: use `"),
        (collators.padded, [npy([[1, 2]]), npy([[1, 2, 3]])], r"arrays of .* cannot be padded: they may differ in"),
        (collators.padded, [npy([1]), npy([[1]])], r"arrays of shapes \[\(1,\), \(1, 1\)\] cannot be padded"),
    ],
)
def test_components_that_do_not_fit_together_are_named_by_their_batch(
    tmp_path: Path, collator: collators.Collator, components: list[bytes], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        collator(components)
    where = r"the field data: of 2 samples, the batch that begins with the \.data component of '0' in"
    with pytest.raises(DataError, match=f"{where} .*: {message}"):
        first_of(shard(tmp_path, "data", components), fields={"data": collator})


@pytest.mark.filterwarnings("ignore:Reading `.npy`")  # of Python 2, says numpy
@pytest.mark.parametrize("collator", [collators.as_arrays, collators.stacked, collators.padded])
def test_a_damaged_array_is_refused_or_is_one(collator: collators.Collator) -> None:
    rng = np.random.default_rng(0)
    whole = [npy([[1, 2], [3, 4]]), npy(["a", "bc"]), npy(np.zeros(2, "i4,f4"))]
    for number in range(1000):
        data = bytearray(whole[number % len(whole)])
        for _ in range(1 + number % 3):
            place = rng.integers(6, 80)  # behind the first six bytes, which every such file has, is the header
            kind = rng.integers(3)
            if kind == 0:
                data[place] = rng.integers(256)
            elif kind == 1:
                del data[place : place + rng.integers(1, 5)]
            else:
                data[place:place] = rng.choice([b"(", b"'", b"\n", b" ", b"9999999999", b"|V0", b"-"])
        with suppress(*REFUSALS):  # anything else fails the test
            collator([bytes(data)])


def test_a_sample_without_the_component_is_named_at_the_start_or_when_a_function_chooses_it(tmp_path: Path) -> None:
    samples = [{"__key__": f"{i}", "jpg": jpeg(40, 40), **({"txt": b"a"} if i == 0 else {})} for i in range(2)]
    tar = write_shard(tmp_path / "a.tar", samples)
    with pytest.raises(DataError, match=r"^fields: 1 of 2 samples lack \.txt \('1'\)\. Leave"):
        loader(tar, fields=["txt"])
    with loader(tar, fields=["txt"], shuffle=lambda epoch: [epoch], last_batch="partial") as batches:
        assert [batch["txt"] for batch in batches] == [["a"]]
        with pytest.raises(DataError, match=r"the \.txt component of '1' in .*a\.tar: the sample has no such"):
            next(iter(batches))


# --- the registry


def test_an_extension_has_its_collator() -> None:
    expected = {"json": collators.as_json, "txt": collators.as_text, "text": collators.as_text}
    expected |= {"cls": collators.as_integers, "npy": collators.stacked, ".JSON": collators.as_json}
    expected |= {"png": collators.as_bytes, "seg.png": collators.as_bytes}
    assert {extension: collators.collator_of(extension) for extension in expected} == expected


@pytest.fixture
def _texts_as_before() -> Iterator[None]:
    before = collators.collator_of("txt")
    yield
    collators.register_collator("txt")(before)


@pytest.mark.usefixtures("_texts_as_before")
def test_a_registered_collator_is_the_extensions_from_then_on(tmp_path: Path) -> None:
    @collators.register_collator(".LEN")
    @collators.register_collator("txt")
    def lengths(components: Sequence[bytes]) -> np.ndarray:
        return np.array([len(component) for component in components])

    assert lengths([b"ab"]).tolist() == [2]  # the decorator gives the function back
    assert collators.collator_of("len") is lengths
    tar = shard(tmp_path, "txt", [b"abc", b""])
    batch = first_of(tar, fields=["txt"])
    assert torch.equal(batch["txt"], torch.tensor([3, 0]))
    assert first_of(tar, fields={"txt": collators.as_text})["txt"] == ["abc", ""]
    assert first_of(tar, fields={".TXT": None})["txt"].tolist() == [3, 0]


# --- in a batch


def test_arrays_become_tensors_on_the_device_and_all_else_stays(tmp_path: Path) -> None:
    def many(components: Sequence[bytes]) -> dict[str, Any]:
        return {
            "array": np.arange(2, dtype=np.int16),
            "tensor": torch.ones(2, dtype=torch.float64),
            "within": {"array": np.ones((2, 3), np.float16)},
            "list": [np.arange(3), None],
            "text": "a",
            "number": np.array(7),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            "by batch": ([1], np.arange(3)),
        }

    tar = shard(tmp_path, "npy", [npy([1, 2]), npy([3, 4])])
    with loader(tar, fields={"npy": many}) as batches:
        fields = next(iter(batches))["npy"]
        device = batches.device
    for tensor, dtype, shape in (
        (fields["array"], torch.int16, (2,)),
        (fields["tensor"], torch.float64, (2,)),
        (fields["within"]["array"], torch.float16, (2, 3)),
    ):
        assert isinstance(tensor, torch.Tensor)
        assert (tensor.device, tensor.dtype, tuple(tensor.shape)) == (device, dtype, shape)
    assert same(fields["list"], [np.arange(3), None])
    assert fields["text"] == "a"
    assert torch.equal(fields["number"], torch.tensor(7))
    assert [len(row) for row in fields["nested"].unbind()] == [2, 3]
    assert same(list(fields["by batch"]), [[1], np.arange(3)])  # a tuple is for what is not by sample
    stacked = first_of(tar, fields=["npy"])["npy"]
    assert torch.equal(stacked, torch.tensor([[1, 2], [3, 4]]))
    padded = first_of(tar, fields={"npy": collators.padded})["npy"]
    assert torch.equal(padded["lengths"], torch.tensor([2, 2]))
    assert same(first_of(tar, fields={"npy": collators.as_arrays})["npy"], [np.array([1, 2]), np.array([3, 4])])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        # What cannot become a tensor, and what has not a row for each sample.
        (np.array([*"abcd"]), "the field data: torch cannot take <U1 .4,.: can't convert"),
        ({"part": np.array([None] * 4)}, r"the field data\['part'\]: torch cannot take object"),
        (np.ones((1, 3), np.float32), "the field data has 1 row for 4 samples: its collator must"),
        (torch.ones(5, 4), "the field data has 5 rows for 4 samples"),
        (memoryview(bytes(3)), "the field data has 3 rows for 4 samples"),
        ([None], "the field data has 1 row for 4 samples"),
        ({"fits": np.arange(4), "in": {"it": np.arange(3), "also": []}}, r"data\['in'\]\['it'\] has 3 rows for 4"),
    ],
)
def test_what_a_collator_may_not_make_is_named(tmp_path: Path, made: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(DataError, match=message):
        first_of(shard(tmp_path, "data", [b""] * 4), batch_size=4, fields={"data": lambda components: made})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([3], "fields: 3 is not an extension: allowed are extensions such as 'json'"),
        ({None: collators.as_json}, "fields: None is not an extension"),
        ({"json": "as_json"}, "fields: 'as_json' for 'json': allowed is a collator, see gpuloader.collators"),
        ({".KEY": collators.as_text}, "key is already the name of another entry of the batch"),
    ],
)
def test_fields_that_cannot_be_meant_are_refused(tmp_path: Path, fields: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=message):
        loader(shard(tmp_path, "json", [b"1"] * 2), fields=fields)


# --- tokens


class Letters:
    """A tokenizer with the interface of `transformers`: a token for each letter."""

    def __call__(
        self, texts: list[str], *, padding: bool, return_tensors: str, truncation: bool = False, max_length: int = 99
    ) -> dict[str, Any]:
        assert padding
        rows = [[ord(letter) for letter in text][: max_length if truncation else None] for text in texts]
        longest = max(map(len, rows))
        ids = np.array([row + [0] * (longest - len(row)) for row in rows])
        made = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}
        return made if return_tensors == "np" else {name: torch.from_numpy(value) for name, value in made.items()}


@pytest.mark.parametrize("kind", ["np", "pt"])
def test_texts_become_padded_tokens(tmp_path: Path, kind: str) -> None:
    tar = shard(tmp_path, "txt", ["aü".encode(), b"abcd"])
    options = {} if kind == "np" else {"return_tensors": "pt"}
    batch = first_of(tar, fields={"txt": collators.tokenized(Letters(), **options)})
    assert torch.equal(batch["txt"]["input_ids"], torch.tensor([[97, 252, 0, 0], [97, 98, 99, 100]]))
    assert torch.equal(batch["txt"]["attention_mask"], torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]))
    cut = collators.tokenized(Letters(), truncation=True, max_length=1)([b"abc", b"b"])
    assert cut["input_ids"].tolist() == [[97], [98]]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (Field("txt", None, collators.tokenized(Letters())), ["ab", "c"]),
        (Field("txt", lambda component: component.decode().upper(), collators.tokenized(Letters())), ["AB", "C"]),
        (Field("json:about.text", None, collators.tokenized(Letters())), ["xyz", "z"]),
        (OneOf("json:captions", None, collators.tokenized(Letters())), ["one", "caption"]),
    ],
)
def test_texts_of_any_field_become_tokens(tmp_path: Path, field: Field, expected: list[str]) -> None:
    contents = [{"about": {"text": "xyz"}, "captions": ["one"]}, {"about": {"text": "z"}, "captions": ["caption"]}]
    samples = [
        {"__key__": f"{i}", "jpg": jpeg(40, 40), "txt": text, "json": json.dumps(content).encode()}
        for i, (text, content) in enumerate(zip([b"ab", b"c"], contents))
    ]
    tokens = first_of(write_shard(tmp_path / "a.tar", samples), fields={"tokens": field})["tokens"]
    assert ["".join(map(chr, row[row > 0])) for row in tokens["input_ids"]] == expected
    assert tokens["attention_mask"].sum(1).tolist() == [len(text) for text in expected]


def test_a_caption_and_its_tokens_are_of_the_same_draw(tmp_path: Path) -> None:
    captions = [[f"{i} of {number}" for i in range(5)] for number in range(8)]
    tar = shard(tmp_path, "json", [json.dumps({"captions": each}).encode() for each in captions])
    fields = {"caption": OneOf("json:captions"), "tokens": OneOf("json:captions", None, collators.tokenized(Letters()))}
    batch = first_of(tar, batch_size=8, fields=fields)
    assert ["".join(map(chr, row)) for row in batch["tokens"]["input_ids"]] == batch["caption"]
    assert len({caption[0] for caption in batch["caption"]}) > 1


def test_a_value_that_is_no_text_is_named(tmp_path: Path) -> None:
    tar = shard(tmp_path, "json", [b'{"a": "text"}', b'{"a": ["text"]}'])
    with pytest.raises(DataError, match=r"the field a: .* component of '1' .*: \['text'\] is no text"):
        first_of(tar, fields={"a": Field("json:a", None, collators.tokenized(Letters()))})


def test_a_collator_in_place_of_a_parser_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"parse=.*: this is a collator, which takes all samples of a batch: give it"):
        Field("txt", collators.tokenized(Letters()))


def fails_for_short(components: Sequence[bytes]) -> list[int]:
    return [component[1] for component in components]


def fails_for_all(components: Sequence[bytes]) -> list[int]:
    raise OSError("no tokenizer there")


def fails_for_two(components: Sequence[bytes]) -> Any:  # noqa: ANN401
    return len(components) if len(components) == 1 else next(iter(()))


@pytest.mark.parametrize(
    ("collate", "message"),
    [
        (fails_for_short, r"of 3 samples, the \.data component of '2' in .*a\.tar: IndexError: index out of range"),
        (fails_for_all, r"of 3 samples, the \.data component of '0' in .*a\.tar: OSError: no tokenizer there"),
        (fails_for_two, r"of 3 samples, the batch that begins with the \.data component of '0' .*: StopIteration$"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "replace"])
def test_what_it_raises_names_its_field(tmp_path: Path, collate: Any, message: str, on_error: str) -> None:  # noqa: ANN401
    tar = shard(tmp_path, "data", [b"12", b"34", b"5"])
    for field in (collate, Field("data", bytes, collate)):
        with pytest.raises(DataError, match=rf"the field data: {message}") as caught:
            first_of(tar, batch_size=3, on_error=on_error, fields={"data": field})
        assert caught.value.__cause__ is not None  # with the traceback of the function


def test_a_loader_with_collators_can_be_pickled(tmp_path: Path) -> None:
    tar = shard(tmp_path, "txt", [b"ab", b"c"])
    with loader(tar, fields={"txt": collators.tokenized(Letters())}) as batches:
        data = pickle.dumps(batches)
        expected = next(iter(batches))["txt"]["input_ids"]
    with pickle.loads(data) as other:
        assert torch.equal(next(iter(other))["txt"]["input_ids"], expected)


def test_tokens_of_a_tokenizer_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "cat": 3}, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    tar = shard(tmp_path, "txt", [b"a cat\n", b"dog"])
    batch = first_of(tar, fields={"txt": collators.tokenized(tokenizer)})
    assert torch.equal(batch["txt"]["input_ids"], torch.tensor([[2, 3], [1, 0]]))
    assert torch.equal(batch["txt"]["attention_mask"], torch.tensor([[1, 1], [1, 0]]))
    cut = first_of(tar, fields={"txt": collators.tokenized(tokenizer, truncation=True, max_length=1)})
    assert torch.equal(cut["txt"]["input_ids"], torch.tensor([[2], [1]]))
