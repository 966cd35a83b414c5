"""The plan: which sample comes when and every random number on it, as pure functions of numbers."""

from gpuloader.plan.draws import Draw, Draws, Stream
from gpuloader.plan.epoch import Cursor, LastBatch, Plan, PlannedBatch
from gpuloader.plan.order import Order, Shuffle, make_order

__all__ = ["Cursor", "Draw", "Draws", "LastBatch", "Order", "Plan", "PlannedBatch", "Shuffle", "Stream", "make_order"]
