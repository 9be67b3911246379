"""Replays of pools as machine code, which is kept on disk."""

from __future__ import annotations

from numba import njit

from clustersim.search.plans.looks import kernels, lockstep_kernels, mixed_kernel

_made = njit(cache=True, error_model="numpy")
prompts_late = _made(kernels.prompts_late)
decodes_late = _made(kernels.decodes_late)
lockstep_late = _made(lockstep_kernels.lockstep_late)
lockstep_decodes_late = _made(lockstep_kernels.lockstep_decodes_late)
mixed_late = _made(mixed_kernel.mixed_late)
