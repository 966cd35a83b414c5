"""What users import, module by module."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A name that comes, goes or moves changes this, and the changelog.
PUBLIC = {
    "gpuloader": """
        BadImages Batch Boxes Buckets Cache Compose Decoder ExplainedSample Field GPULoader GPULoaderError Keypoints
        LabelFrom Mask MixedLoader OneOf Sampling Stage Stats WaitMonitor World __version__
    """,
    "gpuloader.collators": """
        REFUSALS Collator as_arrays as_bytes as_floats as_integers as_json as_text as_vectors padded
        register_collator stacked tokenized
    """,
    "gpuloader.compat": """
        CellMapDataLoader CheckpointManager CollatorRegistry DataLoaderConfig DataLoaderFactory DataModuleProtocol
        GenericTrainer GenericTrainerConfig LanguageModelingDataCollator MultiDataLoaderConfig
        PerformanceConfig SamplingStrategy TaskSpec TrainerHooks TrainingConfig UniversalDataModule VisionDataCollator
    """,
    "gpuloader.compat.turboloader": """
        CenterCrop ColorJitter Compose DataLoader ImageNetNormalize Normalize Pipeline RandomCrop RandomHorizontalFlip
        Resize ResizeMethod Sample TensorFormat ToTensor Transform TransformConfig
    """,
    "gpuloader.errors": """
        BadImageError ConfigError DataError DeviceError GPULoaderError IndexFileError InstallationError LabelError
        LoaderError
        NoSamplesError PackError PresetError RemoteError ShardChangedError ShardNotFoundError StateError
        TarError TooManyBadImagesError
    """,
    "gpuloader.trainers.lightning": """
        GPULoaderDataModule GPULoaderWaitMonitor
    """,
    "gpuloader.pack": """
        LeftOutPicture PackResult pack
    """,
    "gpuloader.trainers.pytorch_lightning": """
        GPULoaderDataModule GPULoaderWaitMonitor
    """,
    "gpuloader.tools.bench": """
        bench
    """,
    "gpuloader.tools.check": """
        CheckResult Fault check_shards
    """,
    "gpuloader.tools.info": """
        Info describe_shards
    """,
    "gpuloader.tools.replay": """
        ReplayResult replay
    """,
    "gpuloader.tools.show": """
        Gallery show
    """,
    "gpuloader.targets": """
        to_coco to_detection to_detr to_tv_tensors
    """,
    "gpuloader.trainers.transformers": """
        GPULoaderTrainer
    """,
    "gpuloader.transforms": """
        Apply AugMix AutoAugment CenterCrop ColorJitter CornerCrop FiveCrop FixedSizeCrop GaussianBlur Grayscale
        Mix Normalize Pad PadIfSmaller RandAugment RandomAdjustSharpness RandomAffine RandomApply
        RandomAutocontrast RandomChoice RandomCrop RandomEqualize RandomErasing RandomGrayscale
        RandomHorizontalFlip RandomInvert RandomIoUCrop RandomPerspective RandomPhotometricDistort
        RandomPosterize RandomResize RandomResizedCrop RandomRotation RandomShortestSize RandomSizeCrop
        RandomSolarize RandomVerticalFlip RandomZoomOut Resize ResizeToSequence SanitizeBoundingBoxes
        ScaleJitter SmartResize TenCrop ThreeAugment TimmAutoAugment TimmRandAugment TrivialAugmentWide View
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
    if module.startswith("gpuloader.trainers."):
        pytest.importorskip(module.removeprefix("gpuloader.trainers."), reason=f"{module} needs it")
    for name in PUBLIC[module].split():
        assert getattr(import_module(module), name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Loader'"):
        import_module(module).Loader  # noqa: B018


def test_modules_that_need_no_further_package_are_attributes() -> None:
    code = """if True:
        import gpuloader
        assert {"collators", "errors", "targets", "transforms"} <= set(dir(gpuloader))
        assert gpuloader.transforms.RandomResizedCrop(224).size == 224
        assert gpuloader.targets.to_detr.__name__ == "to_detr"
        assert gpuloader.collators.as_text.__name__ == "as_text"
        assert gpuloader.errors.GPULoaderError is gpuloader.GPULoaderError
        assert not hasattr(gpuloader, "trainers")  # whose modules need packages that may not be installed
    """
    subprocess.run([sys.executable, "-c", code], check=True)
