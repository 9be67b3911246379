"""The replays of :mod:`~clustersim.search.plans.looks.kernels` as machine code, which is kept on disk."""

from __future__ import annotations

from numba import njit

from clustersim.search.plans.looks import kernels

prompts_late = njit(cache=True, error_model="numpy")(kernels.prompts_late)
decodes_late = njit(cache=True, error_model="numpy")(kernels.decodes_late)
lockstep_late = njit(cache=True, error_model="numpy")(kernels.lockstep_late)
lockstep_decodes_late = njit(cache=True, error_model="numpy")(kernels.lockstep_decodes_late)
