"""Smaller networks: score the weights, mask them, compact what is left, store and export it."""

from posterity.compression.compact import Compacted, compact
from posterity.compression.export import to_onnx, to_torch_export
from posterity.compression.files import bits_from_variance, load, save
from posterity.compression.film import WeightFilm
from posterity.compression.pipeline import CompressedNetwork, compress
from posterity.compression.report import Compression

__all__ = [
    "Compacted",
    "CompressedNetwork",
    "Compression",
    "WeightFilm",
    "bits_from_variance",
    "compact",
    "compress",
    "load",
    "save",
    "to_onnx",
    "to_torch_export",
]
