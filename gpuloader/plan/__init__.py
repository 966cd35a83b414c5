"""The plan: which sample comes when, and every random number for it, as pure functions of numbers."""

from gpuloader.plan.buckets import Bucketed
from gpuloader.plan.draws import EPOCHS, Draw, Draws, Stream, check_epoch, check_seed
from gpuloader.plan.epoch import Cursor, LastBatch, Plan, PlannedBatch
from gpuloader.plan.grouped import Grouped, choose_groups
from gpuloader.plan.mix import Mix, Ratio, parts_of
from gpuloader.plan.order import Order, Shuffle, make_order
from gpuloader.plan.passes import Chosen, Custom, Passes, Shuffled, Weighted, all_samples

__all__ = [
    "EPOCHS",
    "Bucketed",
    "Chosen",
    "Cursor",
    "Custom",
    "Draw",
    "Draws",
    "Grouped",
    "LastBatch",
    "Mix",
    "Order",
    "Passes",
    "Plan",
    "PlannedBatch",
    "Ratio",
    "Shuffle",
    "Shuffled",
    "Stream",
    "Weighted",
    "all_samples",
    "check_epoch",
    "check_seed",
    "choose_groups",
    "make_order",
    "parts_of",
]
