"""Scenarios: YAML files, with the file, line and column of everything that is wrong in them.

::

    text ─► tree ─► document ─► overrides ─► validate ─► load ─► Scenario
           (nodes)  (data and    (--set)     (schema,   (topology, model, plan, … as values)
                     marks)                   checks)

The only package that imports yaml and pydantic.
"""

from clustersim.scenario.expect import Expectation, failed_expectations
from clustersim.scenario.load import load
from clustersim.scenario.parts import load_engine, load_model, load_topology
from clustersim.scenario.resolve import to_yaml
from clustersim.scenario.scenario import RunConfig, Scenario, TraceWorkload

__all__ = [
    "Expectation",
    "RunConfig",
    "Scenario",
    "TraceWorkload",
    "failed_expectations",
    "load",
    "load_engine",
    "load_model",
    "load_topology",
    "to_yaml",
]
