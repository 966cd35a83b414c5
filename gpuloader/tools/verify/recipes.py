"""The check of what each recipe makes of the same samples."""

from __future__ import annotations

from functools import partial

from gpuloader.recipe import load_preset, preset_names
from gpuloader.tools.verify.comparing import BATCH_SIZE, WIDER, compare, few_samples, load_both
from gpuloader.tools.verify.pictures import jpeg, tar_of
from gpuloader.tools.verify.result import Looks, Outcome, Subject


def recipes(subject: Subject) -> Looks:
    """The pixels of each preset; and MixUp with CutMix."""
    for name in preset_names():
        yield name, partial(_recipe, subject, name)
    yield "MixUp and CutMix", partial(_mixed, subject)


def _recipe(subject: Subject, name: str) -> Outcome:
    preset = load_preset(name, {"mix": None})
    if any(view.normalize for view in preset.each_view):
        preset = load_preset(preset, {"Normalize": None})
    widened = any(view.pixels for view in preset.each_view)
    options = {"preset": preset, "sampling": few_samples(subject)}
    (ours, _), (theirs, _) = load_both(subject.tar, subject.device_id, **options)
    return compare(subject, ours, theirs, WIDER if widened else 1.0)


def _mixed(subject: Subject) -> Outcome:
    mix = {"num_classes": 10, "mixup_alpha": 0.8, "cutmix_alpha": 1.0}
    options = {"preset": {"imagenet_train": {"Normalize": None, "mix": mix}}, "label_from": "cls", "last_batch": "pad"}
    with tar_of(map(jpeg, range(BATCH_SIZE))) as tar:
        (ours, _), (theirs, _) = load_both(tar, subject.device_id, **options)
    return compare(subject, ours, theirs, 1.0)
