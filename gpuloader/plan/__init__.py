"""The plan: which sample comes when, and every random number for it, as pure functions of numbers."""

from gpuloader.plan.buckets import Bucketed
from gpuloader.plan.draws import EPOCHS, Draw, Draws, Stream, check_epoch, check_seed
from gpuloader.plan.epoch import Cursor, LastBatch, Plan, PlannedBatch
from gpuloader.plan.mixture import Mixture, Segment, merge, parts_of
from gpuloader.plan.order import Order, Shuffle, make_order
from gpuloader.plan.positions import AllSamples, ByShard, Custom, Positions, Remaining, Subset, Weighted, digest_of

__all__ = [
    "EPOCHS",
    "AllSamples",
    "Bucketed",
    "ByShard",
    "Cursor",
    "Custom",
    "Draw",
    "Draws",
    "LastBatch",
    "Mixture",
    "Order",
    "Plan",
    "PlannedBatch",
    "Positions",
    "Remaining",
    "Segment",
    "Shuffle",
    "Stream",
    "Subset",
    "Weighted",
    "check_epoch",
    "check_seed",
    "digest_of",
    "make_order",
    "merge",
    "parts_of",
]
