"""Codecs with which replicas and tables send tensors in fewer bytes."""

from ps_wire.compression.choice import Choice
from ps_wire.compression.floats import BF16, FP16
from ps_wire.compression.int8 import Int8
from ps_wire.compression.powersgd import PowerSGD
from ps_wire.compression.randomk import RandomK
from ps_wire.compression.registry import register_codec
from ps_wire.compression.sign import Sign
from ps_wire.compression.topk import TopK
from ps_wire.compression.zstd import Zstd

__all__ = ["BF16", "FP16", "Choice", "Int8", "PowerSGD", "RandomK", "Sign", "TopK", "Zstd", "register_codec"]
