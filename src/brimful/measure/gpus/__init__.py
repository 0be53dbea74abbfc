"""The catalogue of known cards. Every number has its source; what nobody has published is labelled assumed."""

from brimful.measure.gpus.find import aliases, all_gpus, custom_gpu, find_gpu, to_card
from brimful.measure.gpus.numbers import with_cudnn

__all__ = ["aliases", "all_gpus", "custom_gpu", "find_gpu", "to_card", "with_cudnn"]
