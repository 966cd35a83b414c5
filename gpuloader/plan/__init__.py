"""The plan: the order of the samples, and every random number, as pure functions of seed, epoch and sample."""

from gpuloader.plan.buckets import BucketSampler, WeightedBuckets
from gpuloader.plan.draws import EPOCHS, Draw, Draws, Stream, check_epoch, check_seed
from gpuloader.plan.epoch import Cursor, LastBatch
from gpuloader.plan.grouped_sampler import GroupedSampler, choose_groups
from gpuloader.plan.mix import Mix, Ratio, parts_of
from gpuloader.plan.mixed_buckets import MixedBuckets
from gpuloader.plan.order import Shuffle, make_order
from gpuloader.plan.plan import Plan, PlannedBatch
from gpuloader.plan.sample_order import Order
from gpuloader.plan.samplers import CustomSampler, Sampler, SampleSubset, ShuffledSampler, WeightedSampler, all_samples

__all__ = [
    "EPOCHS",
    "BucketSampler",
    "Cursor",
    "CustomSampler",
    "Draw",
    "Draws",
    "GroupedSampler",
    "LastBatch",
    "Mix",
    "MixedBuckets",
    "Order",
    "Plan",
    "PlannedBatch",
    "Ratio",
    "SampleSubset",
    "Sampler",
    "Shuffle",
    "ShuffledSampler",
    "Stream",
    "WeightedBuckets",
    "WeightedSampler",
    "all_samples",
    "check_epoch",
    "check_seed",
    "choose_groups",
    "make_order",
    "parts_of",
]
