"""One part of `make card`, in a process of its own: `python -m bench.card.part SPEC`, a JSON object
with what `Bench` holds. A package that is not installed is a sentence of the result.
"""

import importlib
import json
import sys
from pathlib import Path

from bench.card.bench import Bench

if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    bench = Bench(**spec | {name: Path(spec[name]) for name in ("out", "scratch")})
    module, _, function = bench.call.partition(":")
    try:
        getattr(importlib.import_module(module), function)(bench)
    except ModuleNotFoundError as error:
        bench.keep({"skipped": f"{error.name} is not installed"})
