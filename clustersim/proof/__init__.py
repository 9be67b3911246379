"""The proof: a step graph executed as a dataflow program in numpy float64, and its numbers compared with one device's.

Every node reads only what its in-edges bring to its rank; what does not arrive is NaN. The reference model
(:mod:`clustersim.proof.reference`) knows neither plans nor graphs.
"""

from clustersim.proof.proof import Proof, prove
from clustersim.proof.script import Script, chunked_script
from clustersim.proof.shrink import shrunk

__all__ = ["Proof", "Script", "chunked_script", "prove", "shrunk"]
