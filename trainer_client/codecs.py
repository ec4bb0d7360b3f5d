"""Codecs with which replicas and tables send tensors in fewer bytes."""

from ps_wire.compression.choice import Choice
from ps_wire.compression.powersgd import PowerSGD
from ps_wire.compression.quantizers import BF16, FP16, Int8, Sign
from ps_wire.compression.registry import register_codec
from ps_wire.compression.sparsifiers import RandomK, TopK
from ps_wire.compression.zstd import Zstd

__all__ = ["BF16", "FP16", "Choice", "Int8", "PowerSGD", "RandomK", "Sign", "TopK", "Zstd", "register_codec"]
