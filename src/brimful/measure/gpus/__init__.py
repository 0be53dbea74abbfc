"""The catalogue of known cards. Every number has its source; what nobody has published is labelled
assumed.
"""

from brimful.measure.gpus.cards import CARDS
from brimful.measure.gpus.contexts import context, loaded_at_once
from brimful.measure.gpus.find import custom_gpu, find_gpu, others_named, to_card

__all__ = [
    "CARDS",
    "context",
    "custom_gpu",
    "find_gpu",
    "loaded_at_once",
    "others_named",
    "to_card",
]
