"""The plan: which sample comes when and every random number on it, as pure functions of numbers."""

from gpuloader.plan.draws import EPOCHS, Draw, Draws, Stream, check_epoch, check_seed
from gpuloader.plan.epoch import Cursor, LastBatch, Plan, PlannedBatch
from gpuloader.plan.order import Order, Shuffle, make_order
from gpuloader.plan.sampling import ByShard, Custom, Mixture, Sampling, Subset, Weighted, Whole

__all__ = [
    "EPOCHS",
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
    "Sampling",
    "Shuffle",
    "Stream",
    "Subset",
    "Weighted",
    "Whole",
    "check_epoch",
    "check_seed",
    "make_order",
]
