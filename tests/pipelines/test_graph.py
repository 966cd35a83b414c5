"""The graph's pixels, against PIL and torchvision."""

import io

import numpy as np
import pytest
import torch
from making import encoded, jpeg, picture
from oracle import functional, transforms
from PIL import Image
from running import draw, preset_of, run_graph

from gpuloader.pipelines import build
from gpuloader.plan import Draws
from gpuloader.recipe import Preset, preset_names
from gpuloader.recipe.jitter import HUE

LEVEL = 1 / 255 + 1e-6  # PIL rounds twice, to 1 level off at most
PLAIN = {"mean": None, "std": None}  # values in [0, 1]
SIZES = [(375, 500), (500, 375), (225, 300), (224, 224), (256, 256), (100, 150), (300, 1000), (1000, 301), (768, 1024)]


def photos(seed: int = 0) -> list[bytes]:
    sampling = ("4:2:0", "4:4:4", "4:2:2")
    return [jpeg(*size, seed=seed + n, subsampling=sampling[n % 3]) for n, size in enumerate(SIZES)]


def pil(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def largest_difference(ours: torch.Tensor, theirs: list[torch.Tensor]) -> float:
    return (ours - torch.stack(theirs)).abs().max().item()


@pytest.mark.parametrize(("resize", "size"), [(256, 224), (224, 224), (160, 128), (288, 255), (33, 32)])
def test_evaluation_is_within_one_level_of_pil(resize: int, size: int) -> None:
    preset = preset_of("imagenet_eval", size=size, crop={"resize": resize}, **PLAIN)
    reference = transforms.Compose([transforms.Resize(resize), transforms.CenterCrop(size)])
    theirs = [as_tensor(reference(pil(photo))) for photo in photos()]
    assert largest_difference(run_graph(preset, photos()), theirs) <= LEVEL


@pytest.mark.parametrize("epoch", range(3))
def test_training_is_within_one_level_of_pil_on_the_drawn_window(epoch: int) -> None:
    preset = preset_of("imagenet_train", **PLAIN)
    arrays = draw(preset, photos(), epoch)
    theirs = []
    for row, photo in enumerate(photos()):
        window = [*arrays["region_start"][row].tolist(), *arrays["region_shape"][row].tolist()]
        image = transforms.functional.resized_crop(pil(photo), *window, [224, 224])
        theirs.append(as_tensor(transforms.functional.hflip(image) if arrays["mirror"][row] else image))
    assert 0 < arrays["mirror"].sum() < len(photos())
    assert largest_difference(run_graph(preset, photos(), arrays), theirs) <= LEVEL


def test_the_fast_idct_is_off_by_what_the_recipes_page_says() -> None:
    exact = run_graph(preset_of("raw_uint8"), photos())
    difference = (run_graph(preset_of("raw_uint8", fast_idct=True), photos()) - exact).abs()
    assert 0 < difference.mean() < 1
    assert difference.max() <= 17


def test_without_antialias_it_is_torchs_bilinear() -> None:
    preset = preset_of("imagenet_train", antialias=False, flip=0.0, **PLAIN)
    arrays = draw(preset, photos())
    theirs = []
    for row, photo in enumerate(photos()):
        window = [*arrays["region_start"][row].tolist(), *arrays["region_shape"][row].tolist()]
        theirs.append(functional.resized_crop(as_tensor(pil(photo)), *window, [224, 224], antialias=False))
    assert largest_difference(run_graph(preset, photos(), arrays), theirs) <= LEVEL


def test_cifar_is_torchvisions_padded_crop() -> None:
    images = [encoded(picture(32, 32, seed), "PNG") for seed in range(40)]
    preset = preset_of("cifar_train", flip=0.0, **PLAIN)
    arrays = draw(preset, images)
    theirs = []
    for (top, left), image in zip(arrays["corner"].tolist(), images, strict=True):
        padded = transforms.functional.pad(pil(image), [4])
        theirs.append(as_tensor(transforms.functional.crop(padded, top + 4, left + 4, 32, 32)))
    assert largest_difference(run_graph(preset, images, arrays), theirs) <= 1e-6


def test_normalising_is_torchvisions() -> None:
    for name in ("imagenet_train", "imagenet_eval"):
        preset = preset_of(name)
        normalise = transforms.Normalize(preset.mean, preset.std)
        plain = run_graph(preset_of(name, **PLAIN), photos())
        torch.testing.assert_close(run_graph(preset, photos()), normalise(plain), atol=1e-5, rtol=0)


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize(
    ("dtype", "scale", "tolerance"), [("float32", 1, 0), ("float16", 1, 1e-3), ("uint8", 255, 0.501)]
)
def test_dtypes_and_layouts_hold_the_same_values(layout: str, dtype: str, scale: int, tolerance: float) -> None:
    expected = run_graph(preset_of("imagenet_train", **PLAIN), photos()) * scale
    got = run_graph(preset_of("imagenet_train", dtype=dtype, layout=layout, **PLAIN), photos())
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=0)


CMYK = Image.merge("CMYK", [picture(90, 120, seed).convert("L") for seed in range(4)])


@pytest.mark.parametrize(
    "image",
    [
        encoded(picture(90, 120), "PNG"),
        encoded(picture(90, 120), "BMP"),
        encoded(picture(90, 120), "TIFF"),
        encoded(picture(90, 120), "PPM"),
        encoded(picture(90, 120), "WEBP", lossless=True),
        encoded(picture(90, 120).convert("L"), "JPEG"),
        encoded(picture(90, 120).convert("L"), "PNG"),
        encoded(picture(90, 120).convert("P"), "PNG"),
        encoded(picture(90, 120), "JPEG", progressive=True),
        encoded(
            picture(90, 120),
            "JPEG",
            exif=bytes.fromhex("45786966000049492a0008000000010012010300010000000600000000000000"),
        ),
    ],
    ids=["png", "bmp", "tiff", "ppm", "webp", "gray jpeg", "gray png", "palette", "progressive", "EXIF-turned"],
)
def test_other_formats_are_what_pil_reads(image: bytes) -> None:
    # Pillow applies an EXIF rotation as little as torchvision's ImageFolder does.
    preset = preset_of("raw_uint8", size=64, crop={"resize": 80})
    reference = transforms.Compose([transforms.Resize(80), transforms.CenterCrop(64)])
    theirs = [as_tensor(reference(pil(image))) * 255]
    assert largest_difference(run_graph(preset, [image]), theirs) <= 1


def jittered(preset: Preset, images: list[bytes], arrays: dict[str, np.ndarray]) -> list[torch.Tensor]:
    """torchvision's operations, in the drawn order with the drawn factors, on the same crops."""
    without = Preset(**{**preset.model_dump(), "jitter": None})
    plain_arrays = {name: array for name, array in arrays.items() if not name.startswith("jitter")}
    results = []
    for row, cropped in enumerate(run_graph(without, images, plain_arrays)):
        result = cropped
        for step, kind in enumerate(arrays["jitter_kind"][row]):
            matrix = arrays["jitter_matrix"][row, step]
            mean_share = float(arrays["jitter_mean"][row, step])
            if kind == HUE:
                result = functional.adjust_hue(result, float(arrays["jitter_hue"][row, step]))
            elif mean_share:
                result = functional.adjust_contrast(result, 1 - mean_share)
            elif matrix[0, 1]:
                result = functional.adjust_saturation(result, 1 - matrix[0, 1] / 0.587)
            else:
                result = functional.adjust_brightness(result, float(matrix[0, 0]))
        results.append(result)
    return results


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue", "all"])
def test_colour_jitter_is_torchvisions(name: str) -> None:
    strengths = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.5}
    jitter = strengths if name == "all" else {**dict.fromkeys(strengths, 0.0), name: strengths[name]}
    preset = preset_of("imagenet_train_jitter", size=64, jitter=jitter, **PLAIN)
    images = photos() * 3
    arrays = draw(preset, images)
    ours, theirs = run_graph(preset, images, arrays), torch.stack(jittered(preset, images, arrays))
    # torchvision weighs the channels 0.2989, 0.587, 0.114, which add up to 0.9999; PIL and we take 0.299.
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)


def test_the_pixels_do_not_depend_on_neighbours_or_threads() -> None:
    preset = preset_of("imagenet_train_jitter")
    arrays = draw(preset, photos())
    together = run_graph(preset, photos(), arrays, num_threads=3)
    for row, photo in enumerate(photos()):
        alone = run_graph(
            preset, [photo], {name: array[row : row + 1] for name, array in arrays.items()}, num_threads=1
        )
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("name", preset_names())
def test_the_graph_for_a_gpu_can_be_defined_anywhere(name: str) -> None:
    preset, one = preset_of(name), np.ones(1, np.int64)
    arrays = preset.arrays(Draws(0, 0, one), one, one)
    build(preset, arrays, lambda: (), batch_size=2, num_threads=1, device_id=0, prefetch=1)
