"""Models' own configurations as recipes; tests/integrations has the pixels, beside those of timm and Hugging Face."""

from __future__ import annotations

from typing import Any

import pytest

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.errors import PresetError
from gpuloader.recipe import load_preset

HALF = T.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
# As timm 1.0 and transformers 5 give them, for a model of each kind.
TIMM = {
    "input_size": (3, 160, 160),
    "interpolation": "bicubic",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
    "crop_pct": 0.95,
    "crop_mode": "center",
}
STEPS = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
VIT = {**STEPS, "image_processor_type": "ViTImageProcessor", "resample": 2, "size": {"height": 224, "width": 224}}
CLIP = {
    **STEPS,
    "image_processor_type": "CLIPImageProcessor",
    "resample": 3,
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_convert_rgb": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
QWEN = {
    **CLIP,
    "image_processor_type": "Qwen2VLImageProcessor",
    "size": {"shortest_edge": 3136, "longest_edge": 12_845_056},
    "do_center_crop": False,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
OLD_QWEN = {"size": {"min_pixels": 3136, "max_pixels": 12_845_056}}
SIGLIP2 = {
    **{**STEPS, "image_processor_type": "Siglip2ImageProcessor", "resample": 2},
    **{"patch_size": 16, "max_num_patches": 256},
}
CONVNEXT = {**STEPS, "image_processor_type": "ConvNextImageProcessor", "resample": 3, "crop_pct": 0.875}


@pytest.mark.parametrize(
    ("config", "transforms"),
    [
        (TIMM, [T.Resize(168, "bicubic"), T.CenterCrop(160), HALF]),  # 160 / 0.95, rounded down
        ({**TIMM, "crop_mode": "squash"}, [T.Resize((168, 168), "bicubic"), T.CenterCrop(160), HALF]),
        (
            {**TIMM, "crop_mode": "squash", "input_size": (3, 96, 192), "crop_pct": 1.0, "interpolation": "bilinear"},
            [T.Resize((96, 192)), T.CenterCrop((96, 192)), HALF],
        ),
        (VIT, [T.Resize((224, 224)), HALF]),
        ({**VIT, "do_resize": False, "do_center_crop": True, "crop_size": {"height": 8, "width": 9}}, None),
        (CLIP, list(load_preset("clip_eval").transforms)),
        ({**CONVNEXT, "size": {"shortest_edge": 224}}, [T.Resize(256, "bicubic"), T.CenterCrop(224), HALF]),
        ({**CONVNEXT, "size": {"shortest_edge": 384}}, [T.Resize((384, 384), "bicubic"), HALF]),
    ],
)
def test_a_configuration_is_an_evaluation(config: dict[str, Any], transforms: list[Any] | None) -> None:
    expected = [T.CenterCrop((8, 9)), HALF] if transforms is None else transforms
    assert Compose.from_torchvision(config) == Compose.from_timm(config) == Compose(expected)


@pytest.mark.parametrize(
    ("config", "resize"),
    [
        (QWEN, T.SmartResize(28, 3136, 12_845_056)),
        (
            {**QWEN, "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16},
            T.SmartResize(32, 3136, 12_845_056),
        ),
        ({**QWEN, **OLD_QWEN}, T.SmartResize(28, 3136, 12_845_056)),  # as older transformers write it
        ({**QWEN, "min_pixels": 784, "max_pixels": None}, T.SmartResize(28, 784, 12_845_056)),  # it overrides `size`
        ({**QWEN, "size": None, "min_pixels": 784, "max_pixels": 7840}, T.SmartResize(28, 784, 7840)),
        (SIGLIP2, T.ResizeToSequence(16, 256, "bilinear")),
    ],
)
@pytest.mark.parametrize("batch", ["list", {"pad": 28}])
def test_a_budget_of_pixels_or_patches_is_read(config: dict[str, Any], resize: Any, batch: Any) -> None:  # noqa: ANN401
    normalize = HALF if "max_num_patches" in config else load_preset("clip_eval").transforms[-1]
    assert Compose.from_torchvision(config, batch=batch) == Compose([resize, normalize], batch=batch)


def test_levels_stay_where_they_are_not_rescaled() -> None:
    config = {**VIT, "do_rescale": False, "do_normalize": False}
    assert Compose.from_torchvision(config, layout="channels_last") == Compose(
        [T.Resize((224, 224))], dtype="uint8", layout="channels_last"
    )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"size": 224}, "its keys are ['size']: allowed are the mapping that timm's resolve_model_data_config(model)"),
        ({**TIMM, "input_size": (3, 96, 192)}, "crop_mode='center' with input_size=(3, 96, 192) has no counterpart"),
        ({**TIMM, "input_size": 160}, "it cannot be read: cannot unpack non-iterable int object"),
        ({**VIT, "image_processor_type": "DetrImageProcessor"}, "DetrImageProcessor is not supported: allowed are"),
        ({**VIT, "size": {"longest_edge": 224}}, "size={'longest_edge': 224}: allowed are a shortest_edge, or"),
        ({**VIT, "do_rescale": False}, "do_normalize without do_rescale: mean and std must be for values from 0 to 1"),
        ({key: value for key, value in VIT.items() if key != "resample"}, "it has no 'resample': load it with"),
        ({**QWEN, "size": {"shortest_edge": 3136}}, "it has no 'longest_edge': load it with"),
        ({**QWEN, "size": {"shortest_edge": 9, "longest_edge": 8}}, "`SmartResize`: max_pixels 8: allowed is"),
        ({**SIGLIP2, "max_num_patches": 0}, "`ResizeToSequence.max_seq_len`: found 0"),
    ],
)
def test_what_a_recipe_cannot_do_is_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(PresetError) as caught:
        Compose.from_torchvision(config)
    assert str(caught.value).startswith(f"the model's configuration cannot be translated: {says}")
