"""Architectures: what a model is made of, and its parameters, K/V cache and work before any sharding."""

from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe
from clustersim.model.hugging_face import model_from_config
from clustersim.model.tiny import tiny

__all__ = ["Attention", "Ffn", "Layer", "ModelSpec", "Moe", "model_from_config", "tiny"]
