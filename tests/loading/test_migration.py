"""The page's script for `ImageFolder`, before and after: the same steps, pixels and accuracy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from making import encoded, tar_of, write_tree
from oracle import torchvision, transforms
from PIL import Image

from gpuloader import Compose, GPULoader
from gpuloader.pack import pack

pytestmark = pytest.mark.slow(kept=1, of="migration")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrating.md"
SCRIPT, CHANGED = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[:2]
WORKERS = "num_workers=8, pin_memory=True"
STD = torch.tensor((0.229, 0.224, 0.225))[:, None, None]
EVALUATION = transforms.Compose(
    [
        transforms.Resize(256),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)


def packed(root: Path) -> Path:
    shards = root.with_name(f"{root.name} packed")
    pack(root, shards, shuffle=False, workers=1)
    return shards


SOURCES: dict[str, Callable[[Path], dict[str, Any]]] = {  # how the loader is given a folder's pictures
    "folder": lambda root: {"tar": root},
    "tar": lambda root: {"tar": tar_of(root, root.with_suffix(".tar")), "label_from": "folder"},
    "shards": lambda root: {"tar": packed(root)},
}


def photo(label: int, rng: np.random.Generator) -> bytes:
    """Noise in which the class's colour is a little stronger than the others."""
    height, width = rng.integers(80, 160, 2)
    few = rng.integers(0, 200, (6, 6, 3), dtype=np.uint8)
    few[..., label] += 40
    return encoded(Image.fromarray(few).resize((int(width), int(height)), Image.Resampling.BILINEAR), "JPEG")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("migration") / "photos", np.random.default_rng(0)
    for part, count in (("train", 288), ("val", 90)):
        files = {f"{'rgb'[i % 3]}-class/{i:03d}.jpg": photo(i % 3, rng) for i in range(count)}
        write_tree(folder / part, files)
    return folder


def run(script: str, **names: Any) -> SimpleNamespace:  # noqa: ANN401 - a script's variables
    """Its variables after it ran."""
    torch.manual_seed(0)
    exec(script, names)
    return SimpleNamespace(**names)


def accuracy(model: torch.nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The share of pictures whose class the model says."""
    with torch.no_grad():
        right = [model.cpu()(images.cpu()).argmax(1) == labels.cpu() for images, labels in batches]
    return float(torch.cat(right).float().mean())


@pytest.mark.parametrize("source", SOURCES)
def test_a_script_for_image_folder_goes_on_with_one_line_changed(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    monkeypatch.chdir(photos.parent)
    script = SCRIPT.replace(WORKERS, "num_workers=0")
    [line] = re.findall(r"^loader = .*$", script, re.MULTILINE)
    train, val = (SOURCES[source](photos / part) for part in ("train", "val"))
    changed = CHANGED if source == "folder" else CHANGED.replace("dataset.root, 16", "**train, batch_size=16")
    before = run(script)
    printed = capsys.readouterr().out
    after = run(script.replace(line, changed), train=train)
    assert (
        capsys.readouterr().out
        == printed
        == "".join(f"{epoch} 18 (16, 3, 224, 224) torch.float32 torch.int64\n" for epoch in range(2))
    )
    assert list(after.loader.classes) == before.dataset.classes

    pictures = torchvision.datasets.ImageFolder(photos / "val", EVALUATION)
    theirs = list(torch.utils.data.DataLoader(pictures, 30))
    with GPULoader(**val, batch_size=30, device_id=None, preset=Compose.from_torchvision(EVALUATION)) as loader:
        ours = list(loader)
    for (images, labels), (same_images, same_labels) in zip(theirs, ours, strict=True):
        assert torch.equal(labels, same_labels)
        assert ((images - same_images) * STD * 255).abs().max() < 1.01  # levels
    expected = accuracy(before.model, theirs)
    assert expected > 0.85
    assert abs(accuracy(after.model, ours) - expected) <= 0.05
