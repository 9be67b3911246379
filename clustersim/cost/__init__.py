"""Durations of operators on a device, number formats, and the overheads of engines.

>>> from clustersim.cost import Precision, RooflineCost          # doctest: +SKIP
>>> cost = RooflineCost(device, Precision(weights="fp8"))        # doctest: +SKIP
>>> cost.seconds("gemm", {"m": 64, "n": 4096, "k": 4096})        # doctest: +SKIP
"""

from clustersim.cost.engine import Engine, engine_from_mapping
from clustersim.cost.points import MeasuredPoints, read_points
from clustersim.cost.precision import DTYPE_BYTES, Precision, dtype_bytes
from clustersim.cost.protocol import OPTIONAL_KEYS, SHAPE_KEYS, CostModel, Shape
from clustersim.cost.roofline import RooflineCost
from clustersim.cost.table import TableCost

__all__ = [
    "DTYPE_BYTES",
    "OPTIONAL_KEYS",
    "SHAPE_KEYS",
    "CostModel",
    "Engine",
    "MeasuredPoints",
    "Precision",
    "RooflineCost",
    "Shape",
    "TableCost",
    "dtype_bytes",
    "engine_from_mapping",
    "read_points",
]
