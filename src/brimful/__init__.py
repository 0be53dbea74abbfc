"""brimful measures what a PyTorch training command does, and finds the settings with the highest
throughput within memory.

In a training script (each is a no-op when brimful did not start it):

    with brimful.phase("encoding"):     a named stretch of the run, with a memory peak of its own
    brimful.setting("batch_size", 64)   the planned value, or the default given

From Python, what the command line does (each returns a `Record`):

    brimful.predict   will it fit a card, how much memory in which phase, the largest batch size
    brimful.audit     what a command really does
    brimful.tune      the settings with the highest throughput, each run before it is named
    brimful.check     predictions beside their baseline: what grew, and which line did it
    brimful.compare   two ways to train beside each other: speed, memory, and how soon they learn
    brimful.run       trains with the settings that tune chose; smaller after out of memory

In a notebook a record shows itself as a page.

Importing this package imports no torch: the names above are loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from brimful.errors import BrimfulError
    from brimful.record import read_record
    from brimful.values import Command, Plan, Record
    from brimful.verbs.audit import audit
    from brimful.verbs.check import check
    from brimful.verbs.compare import compare
    from brimful.verbs.predict import predict
    from brimful.verbs.run import run
    from brimful.verbs.tune import tune
    from brimful_inside.script import phase, setting

_HOMES = {
    "BrimfulError": "brimful.errors",
    "Command": "brimful.values",
    "Plan": "brimful.values",
    "Record": "brimful.values",
    "audit": "brimful.verbs.audit",
    "check": "brimful.verbs.check",
    "compare": "brimful.verbs.compare",
    "phase": "brimful_inside.script",
    "predict": "brimful.verbs.predict",
    "read_record": "brimful.record",
    "run": "brimful.verbs.run",
    "setting": "brimful_inside.script",
    "tune": "brimful.verbs.tune",
}

__all__ = [
    "BrimfulError",
    "Command",
    "Plan",
    "Record",
    "__version__",
    "audit",
    "check",
    "compare",
    "phase",
    "predict",
    "read_record",
    "run",
    "setting",
    "tune",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'brimful' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
