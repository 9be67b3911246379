"""What is asked of the cluster: requests, recorded (``trace``) or drawn (``draws``)."""

from clustersim.workload.arrivals import ARRIVALS, AllAtOnce, Arrivals, ClosedLoop, Constant, Gamma, Poisson
from clustersim.workload.draws import DrawnWorkload, generate
from clustersim.workload.lengths import (
    Empirical,
    Fixed,
    Lengths,
    LogNormal,
    Uniform,
    empirical_from_trace,
)
from clustersim.workload.requests import Requests
from clustersim.workload.streams import named_stream
from clustersim.workload.traces.formats import FORMATS
from clustersim.workload.traces.trace import read_trace

__all__ = [
    "ARRIVALS",
    "FORMATS",
    "AllAtOnce",
    "Arrivals",
    "ClosedLoop",
    "Constant",
    "DrawnWorkload",
    "Empirical",
    "Fixed",
    "Gamma",
    "Lengths",
    "LogNormal",
    "Poisson",
    "Requests",
    "Uniform",
    "empirical_from_trace",
    "generate",
    "named_stream",
    "read_trace",
]
