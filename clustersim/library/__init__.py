"""What programs and notebooks call: load, check and run a scenario, and look at what came out.

Its functions are public at the top: ``clustersim.load``, ``clustersim.check``, ``clustersim.run``.
"""
