"""The house: what users import, module by module, and the rooms as CONTRIBUTING draws them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DRAWN = re.findall(r"^    ((?:\w+/)+) {2,}\S", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
BESIDE = {"configs/presets", "configs/train", "docs", "scripts", "tests", "tests/support"}

# A name that comes, goes or moves changes this, and the changelog.
PUBLIC = {
    "gpuloader": """
        BadImageError BadImages Batch Boxes Buckets Cache Compose ConfigError Curriculum DataError Decoder DeviceError
        Field GPULoader GPULoaderError IndexFileError InstallationError Keypoints LabelError LabelFrom LoaderError Mask
        MixedLoader NoSamplesError OneOf PackError
        PresetError RemoteError Sampling ShardChangedError ShardNotFoundError Stage StateError Stats
        TarError TooManyBadImagesError WaitMonitor World __version__
    """,
    "gpuloader.collators": """
        REFUSALS Collator as_arrays as_bytes as_floats as_integers as_json as_text as_vectors padded
        register_collator stacked tokenized
    """,
    "gpuloader.compat.cellmap": """
        CellMapDataLoader
    """,
    "gpuloader.compat.turboloader": """
        CenterCrop ColorJitter Compose DataLoader ImageNetNormalize Normalize Pipeline RandomCrop RandomHorizontalFlip
        Resize ResizeMethod Sample TensorFormat ToTensor Transform TransformConfig
    """,
    "gpuloader.compose": """
        Compose
    """,
    "gpuloader.data": """
        CellMapDataLoader CollatorRegistry DataLoaderConfig DataLoaderFactory DataModuleProtocol DefaultCollator
        DeviceLoader LanguageModelingDataCollator MultiDataLoaderConfig SamplingStrategy TaskSpec TextCollator
        UniversalDataModule VisionCollator VisionDataCollator calculate_optimal_batch_size create_multi_dataloaders
        create_optimized_dataloader diagnose_dataloader_speed ensure_deterministic_dataloader get_optimal_num_workers
        set_reproducible_training worker_init_fn
    """,
    "gpuloader.errors": """
        BadImageError ConfigError DataError DeviceError GPULoaderError IndexFileError InstallationError LabelError
        LoaderError
        NoSamplesError PackError PresetError RemoteError ShardChangedError ShardNotFoundError StateError
        TarError TooManyBadImagesError
    """,
    "gpuloader.lightning": """
        GPULoaderDataModule GPULoaderWaitMonitor UniversalDataModule
    """,
    "gpuloader.pack": """
        LeftOutPicture PackResult pack
    """,
    "gpuloader.pytorch_lightning": """
        GPULoaderDataModule GPULoaderWaitMonitor UniversalDataModule
    """,
    "gpuloader.stage": """
        Stage
    """,
    "gpuloader.tools.bench": """
        bench
    """,
    "gpuloader.tools.check": """
        CheckResult check_shards
    """,
    "gpuloader.tools.info": """
        Info describe_shards
    """,
    "gpuloader.tools.show": """
        Gallery show
    """,
    "gpuloader.targets": """
        Boxes Keypoints Mask to_detection to_detr to_tv_tensors
    """,
    "gpuloader.training": """
        CheckpointManager DataLoaderProfilingHook GenericTrainer GenericTrainerConfig HookManager MultiDataLoaderConfig
        PerformanceConfig SamplingStrategy TrainerHooks TrainingConfig
    """,
    "gpuloader.transformers": """
        GPULoaderTrainer
    """,
    "gpuloader.transforms": """
        AugMix AutoAugment CenterCrop ColorJitter CornerCrop FiveCrop GaussianBlur Grayscale Mix Normalize Pad
        RandAugment RandomAdjustSharpness RandomAffine RandomApply RandomAutocontrast RandomChoice RandomCrop
        RandomEqualize RandomErasing RandomGrayscale RandomHorizontalFlip RandomInvert RandomIoUCrop RandomPerspective
        RandomPosterize RandomResize RandomResizedCrop RandomRotation RandomShortestSize RandomSizeCrop RandomSolarize
        RandomVerticalFlip RandomZoomOut Resize SanitizeBoundingBoxes ScaleJitter TenCrop
        ThreeAugment TimmAutoAugment TimmRandAugment TrivialAugmentWide View
    """,
}


def source(module: str) -> ast.Module:
    path = (ROOT / "gpuloader").joinpath(*module.split(".")[1:])
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


@pytest.mark.parametrize("module", PUBLIC)
def test_a_module_says_that_these_are_public(module: str) -> None:
    # Read, not run: Lightning and transformers need not be installed.
    [said] = [
        ast.literal_eval(each.value)
        for each in source(module).body
        if isinstance(each, ast.Assign) and [ast.unparse(target) for target in each.targets] == ["__all__"]
    ]
    assert said == PUBLIC[module].split()


@pytest.mark.parametrize("module", PUBLIC)
def test_a_module_has_its_public_names(module: str) -> None:
    if "lightning" in module or module == "gpuloader.transformers":
        pytest.importorskip(module.removeprefix("gpuloader."), reason=f"{module} needs it")
    for name in PUBLIC[module].split():
        assert getattr(import_module(module), name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Loader'"):
        import_module(module).Loader  # noqa: B018


def test_modules_that_need_no_further_package_are_attributes() -> None:
    code = """if True:
        import gpuloader
        assert {"collators", "errors", "targets", "transforms"} <= set(dir(gpuloader))
        assert gpuloader.transforms.RandomResizedCrop(224).size == 224
        assert gpuloader.targets.Boxes is gpuloader.Boxes
        assert gpuloader.collators.as_text.__name__ == "as_text"
        assert gpuloader.errors.ConfigError is gpuloader.ConfigError
        assert not hasattr(gpuloader, "lightning")  # which raises InstallationError where Lightning is not installed
        assert not hasattr(gpuloader, "data")
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_each_room_is_drawn() -> None:
    tree = {
        path.parent.relative_to(ROOT).as_posix()
        for top in ("gpuloader", "pipelines")
        for path in (ROOT / top).rglob("__init__.py")
    }
    there = {room for room in tree if not room.startswith("gpuloader/pipelines")} - {"gpuloader"}
    assert sorted(DRAWN) == sorted(f"{room}/" for room in there | BESIDE)
    for room in BESIDE:
        assert (ROOT / room).is_dir()
