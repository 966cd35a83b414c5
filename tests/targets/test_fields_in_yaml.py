"""Fields in YAML: a class with its options, as a recipe has its transforms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from making import jpeg, write_shard

from gpuloader import Boxes, GPULoader, Keypoints, Mask, OneOf
from gpuloader.errors import ConfigError
from gpuloader.loading.arguments import resolve_fields


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Boxes: {source: 'json:a', format: xywh, labels: category_id}", Boxes("json:a", "xywh", labels="category_id")),
        ("Boxes: {source: 'json:a', keys: [area], pad_to: 9}", Boxes("json:a", keys=["area"], pad_to=9)),
        ("Mask: png", Mask("png")),
        ("Mask: {source: mask.png, fill: 255}", Mask("mask.png", fill=255)),
        ("Keypoints: {source: 'json:a', flip_pairs: [[1, 2]]}", Keypoints("json:a", flip_pairs=[[1, 2]])),  # type: ignore[list-item]
        ("OneOf: json:captions", OneOf("json:captions").resolve()),
    ],
)
def test_yaml_has_a_field_as_its_class_and_options(text: str, expected: object) -> None:
    assert resolve_fields({"it": yaml.safe_load(text)}, "dict") == {"it": expected}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Box: png", r"\{'Box': 'png'\} for 'it': allowed is .* \(did you mean Boxes\?\)"),
        ("{}", "allowed is"),
        ("{Mask: png, Boxes: png}", "allowed is"),
        ("Boxes: {format: xywh}", r"`fields\.it\.source` is missing"),
        ("Boxes: {source: 'json:a', formt: xywh}", r"`fields\.it\.formt` is an unknown key \(did you mean format\?\)"),
        ("Boxes: 5", r"it=5: allowed is a Boxes\(source="),
    ],
)
def test_a_field_of_yaml_that_is_wrong_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_fields({"it": yaml.safe_load(text)}, "dict")


def test_a_loader_of_yaml_delivers_targets(tmp_path: Path) -> None:
    content = json.dumps({"annotations": [{"bbox": [8, 16, 32, 32], "category_id": 3}]}).encode()
    write_shard(tmp_path / "a.tar", [{"__key__": "a", "jpg": jpeg(64, 64), "json": content}])
    text = f"""
    tar: {tmp_path}/a.tar
    batch_size: 1
    device_id: null
    preset: cifar10_eval
    label_from: null
    output: dict
    fields: {{boxes: {{Boxes: {{source: "json:annotations", format: xywh, labels: category_id}}}}}}
    """
    with GPULoader(**yaml.safe_load(text)) as loader:
        [batch] = loader
    assert batch["boxes"][0].tolist() == [[4, 8, 20, 24]]  # the image is resized to half its size
    assert batch["boxes_labels"][0].tolist() == [3]


@pytest.mark.slow(kept=1)  # each imports torch anew
@pytest.mark.parametrize("module", ["trainers.datamodule", "tools.bench", "tools.check", "tools.show"])
def test_all_that_read_a_loaders_yaml_know_the_targets(module: str) -> None:
    program = f"import gpuloader.{module}; from gpuloader.loading.fields import FIELDS; print(*sorted(FIELDS))"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "Boxes Field Keypoints Mask OneOf\n"
