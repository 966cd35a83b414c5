"""Every transform is as near to its oracle as the table says, and as its docstring says; the page shows each."""

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from gpu_graph import GPU, load_on
from making import write_shard
from oracle import transforms as theirs
from running import run_views

from gpuloader import Boxes
from gpuloader import transforms as T
from gpuloader.recipe import TRANSFORMS, Recipe
from gpuloader.recipe.model import ResizeFilter, Transform

pytestmark = pytest.mark.usefixtures("torch_in_one_thread")
ROOT = Path(__file__).resolve().parent.parent


def _picturing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("picturing", ROOT / "scripts/picturing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


picturing = _picturing()


def sides(interpolation: ResizeFilter) -> list[Transform]:
    resizes = [T.Resize((side, 224), interpolation) for side in (32, 64, 112, 168, 300)]
    return [*resizes, T.Resize((160, 224), interpolation, pad=114)]


class Row(NamedTuple):
    """How far a transform may be from its oracle on the CPU, in levels of 0 to 255; and the graph for a GPU from that.

    Attributes:
        oracle: "torchvision" or "PIL", whose operation gets the parameters that were drawn; "its steps" are
            torchvision's operations one after the other (tests/recipe/test_policies.py has which are drawn, and
            tests/recipe/test_timm.py timm's formulas); "own" is the rectangle that was drawn, filled by torch.
        mean, largest: over all pixels of all images.
        parameters: empty for the five strengths on the page of operations.
        interpolation: that of the parameters, where the docstring gives each its bound.
        gpu: the mean and the largest difference of the graph for a GPU, run by the CPU, to that for the CPU. Resizing,
            DALI repeats the border where PIL cuts the filter off; `docs/operations.md` has what else differs by design.
    """

    name: str
    oracle: str
    mean: float
    largest: float
    parameters: Sequence[Transform] = ()
    interpolation: str = ""
    gpu: tuple[float, float] = (0, 0)


ROWS = [
    Row("Resize", "PIL", 0.2, 1, sides("bilinear"), interpolation="bilinear", gpu=(0.1, 30)),
    Row("Resize", "PIL", 0.2, 13, sides("bicubic"), interpolation="bicubic", gpu=(0.05, 20)),
    Row("Resize", "PIL", 0.25, 26, sides("lanczos"), interpolation="lanczos", gpu=(0.05, 20)),
    Row("RandomResizedCrop", "PIL", 0.2, 1, gpu=(0.1, 10)),
    Row("CenterCrop", "torchvision", 0, 0),
    Row("RandomCrop", "torchvision", 0, 0),
    Row("Pad", "torchvision", 0, 0),
    Row("RandomHorizontalFlip", "torchvision", 0, 0),
    Row("RandomVerticalFlip", "torchvision", 0, 0),
    Row("CornerCrop", "torchvision", 0, 0),
    Row("FiveCrop", "torchvision", 0, 0, [T.FiveCrop(112), T.FiveCrop((31, 64))]),
    Row("ScaleJitter", "PIL", 0.1, 1, gpu=(0.1, 20)),
    Row("RandomShortestSize", "PIL", 0.1, 1, gpu=(0.1, 30)),
    Row("SmartResize", "PIL", 0.1, 22, interpolation="bicubic", gpu=(0.05, 20)),
    Row("ResizeToSequence", "PIL", 0.1, 20, interpolation="bicubic", gpu=(0.05, 20)),
    Row("RandomResize", "PIL", 0.1, 1, gpu=(0.1, 30)),
    Row("RandomSizeCrop", "PIL", 0.1, 1, gpu=(0.1, 20)),
    Row("RandomZoomOut", "torchvision", 0, 0, picturing.EXAMPLES["RandomZoomOut"][:3]),
    Row("RandomIoUCrop", "torchvision", 0, 0),
    Row("FixedSizeCrop", "torchvision", 0, 0),
    Row("PadIfSmaller", "torchvision", 0, 0),
    Row("SanitizeBoundingBoxes", "torchvision", 0, 0, [T.SanitizeBoundingBoxes()]),
    Row("TenCrop", "torchvision", 0, 0, [T.TenCrop(112), T.TenCrop((31, 64), vertical_flip=True)]),
    Row("RandomRotation", "torchvision", 0.001, 1, interpolation="bilinear", gpu=(0.2, 64)),
    Row("RandomAffine", "torchvision", 0.001, 1, interpolation="bilinear", gpu=(0.1, 64)),
    Row("RandomPerspective", "torchvision", 0.001, 1, interpolation="bilinear", gpu=(0.5, 64)),
    Row("ColorJitter", "torchvision", 0, 0, gpu=(0.001, 2)),
    Row("RandomPhotometricDistort", "torchvision", 0, 0, gpu=(0.01, 4)),
    Row("Grayscale", "torchvision", 0, 0),
    Row("RandomGrayscale", "torchvision", 0, 0),
    Row("GaussianBlur", "torchvision", 0.001, 1, gpu=(0.001, 1)),
    Row("RandomSolarize", "torchvision", 0, 0),
    Row("RandomPosterize", "torchvision", 0, 0),
    Row("RandomEqualize", "torchvision", 0, 0, gpu=(0.3, 1)),
    Row("RandomAutocontrast", "torchvision", 0, 0),
    Row("RandomAdjustSharpness", "torchvision", 0, 0),
    Row("RandomInvert", "torchvision", 0, 0),
    # In a chain one level may become 255: a threshold is passed, or a histogram is stretched. Few do.
    Row("AutoAugment", "its steps", 0.01, 255, gpu=(0.1, 255)),
    Row("RandAugment", "its steps", 0.01, 255, gpu=(0.1, 255)),
    Row("TrivialAugmentWide", "its steps", 0.01, 255, gpu=(0.1, 255)),
    Row("AugMix", "its steps", 0.01, 255, gpu=(0.1, 255)),
    Row("TimmRandAugment", "its steps", 0.01, 255, gpu=(0.1, 255)),
    Row("TimmAutoAugment", "its steps", 0.01, 255, gpu=(0.3, 255)),  # it often equalizes
    Row("ThreeAugment", "its steps", 0.001, 1, gpu=(0.001, 4)),
    Row("RandomApply", "its steps", 0.001, 1, gpu=(0.001, 1)),
    Row("RandomChoice", "its steps", 0, 0),
    Row(
        "Normalize",
        "torchvision",
        0.001,
        0.001,
        [T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))],
        gpu=(0.001, 0.001),
    ),
    Row("RandomErasing", "own", 0, 0, gpu=(0.001, 0.01)),
]
OWN = {"Apply"}  # does what a program says
NOT_OF_ONE_IMAGE = {"Mix", "View"}  # tests/loading/test_blending.py has the mix of a batch; a view is a list


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drawn pictures and noise."""
    parts = {"cls": b"0", "json": json.dumps({"boxes": picturing.BOXES.tolist()}).encode()}
    samples = [{"__key__": str(n), "png": image, **parts} for n, image in enumerate(picturing.pictures(range(3)))]
    return write_shard(tmp_path_factory.mktemp("shards") / "a.tar", samples)


def measure(row: Row) -> tuple[float, float]:
    """The mean and the largest difference."""
    if row.name in {"FiveCrop", "TenCrop", "Normalize"}:
        return measure_whole(row.parameters)
    parameters = row.parameters or picturing.EXAMPLES[row.name]
    largest, mean = picturing.measure(parameters, 1, ["cpu"])["cpu"]
    return mean, largest


def measure_whole(parameters: Sequence[Transform]) -> tuple[float, float]:
    """Of what draws nothing: torchvision's transform of the same name and fields."""
    images, differences = picturing.pictures(range(3)), []
    [levels] = run_views(picturing.recipe(None), images)
    for ours in parameters:
        preset = Recipe((T.Resize((224, 224)), ours), dtype="float32" if isinstance(ours, T.Normalize) else "uint8")
        expected = getattr(theirs.v2, type(ours).__name__)(**vars(ours))(
            levels if preset.dtype == "uint8" else levels / 255
        )
        views = run_views(preset, images)
        for one, other in zip(views, expected if len(views) > 1 else [expected], strict=True):
            differences.append((one - other).abs().flatten() * (1 if preset.dtype == "uint8" else 255))
    each = torch.cat(differences)
    return each.mean().item(), each.max().item()


@pytest.mark.slow(kept=3)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name} {row.interpolation}".strip())
def test_it_is_as_near_to_its_oracle_as_the_table_says(row: Row) -> None:
    mean, largest = measure(row)
    assert mean <= row.mean
    assert largest <= row.largest


@pytest.mark.slow(kept=3)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name} {row.interpolation}".strip())
def test_the_gpus_graph_is_as_near_to_the_cpus_kernels(row: Row, shard: Path) -> None:
    """Of the whole loader; each of the parameters is a view."""
    parameters: list[Transform] = []
    for each in row.parameters or picturing.EXAMPLES[row.name]:
        parameters += [each] if each not in parameters else []
    if row.oracle == "its steps":
        parameters = [parameters[len(parameters) // 2]]  # tracing the graph of a policy takes long
    alone = [picturing.recipe(each) for each in parameters]
    preset = Recipe(views=[T.View(list(each.transforms)) for each in alone], dtype=alone[0].dtype)
    views, fields = [], {"boxes": Boxes("json:boxes")} if preset.by_boxes else []
    for device in (GPU, None):
        with load_on(device, shard, 4, preset=preset, decoder={"prefetch": 1}, fields=fields) as loader:
            [batch] = loader
            views.append(batch["image"] if len(preset.each_view) > 1 else [batch["image"]])
    levels = 1 if preset.dtype == "uint8" else 255
    differences = torch.cat(
        [levels * (one.float() - other.float()).abs().flatten() for one, other in zip(*views, strict=True)]
    )
    mean, largest = row.gpu
    assert differences.mean() <= mean
    assert differences.max() <= largest


def test_the_table_has_every_transform() -> None:
    assert {row.name for row in ROWS} == set(T.__all__) - NOT_OF_ONE_IMAGE - OWN == set(TRANSFORMS) - OWN


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name} {row.interpolation}".strip())
def test_the_docstring_says_what_the_table_says(row: Row) -> None:
    paragraphs = [" ".join(part.split()) for part in (TRANSFORMS[row.name].__doc__ or "").split("\n\n")]
    said = [part for part in paragraphs if part.startswith("On the CPU its levels ")]
    differ = f"differ from {row.oracle}'s by at most "
    bound = f"{differ}{row.largest}" if row.largest else f"equal {row.oracle}'s."
    match row:
        case Row(oracle="its steps" | "own") | Row(name="Normalize" | "SanitizeBoundingBoxes"):  # no bound or no levels
            assert said == []
        case Row(oracle="PIL", interpolation=""):
            assert said == ["On the CPU its levels are as close to PIL's as those of `Resize`."]
        case _:
            [paragraph] = said
            assert paragraph.startswith(f"On the CPU its levels {differ if row.interpolation else bound}")
            assert not row.interpolation or f"{row.largest} with `{row.interpolation}`" in paragraph


def test_every_operation_is_on_the_page_as_measured() -> None:
    measured = json.loads((picturing.FOLDER / "differences.json").read_text())
    not_shown = {"FiveCrop", "TenCrop", "Normalize", "SanitizeBoundingBoxes", *OWN}  # the page says why
    assert set(measured) == set(picturing.EXAMPLES) == set(TRANSFORMS) - not_shown
    page = picturing.PAGE.read_text()
    assert picturing.replaced(page, picturing.page(measured)) == page
    assert all((picturing.FOLDER / f"{name}.jpg").is_file() for name in measured)
