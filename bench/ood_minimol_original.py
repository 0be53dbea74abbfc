"""The `minimol` package as its users call it, in an environment that has it (make .venv-minimol):
bench/ood_minimol.py starts it.

A line on standard input, {"smiles": [...], "out": a path, "weights": a checkpoint or null}, is
answered by one on standard output; the features are in the file `out` then. No import of brimful:
it is not installed there.
"""

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

# What graphium imports and does not use here, where it is not installed; in a folder, so that its
# worker processes find it.
UNUSED = {
    "torch_sparse.py": "class SparseTensor: ...",
    "fastparquet.py": "class ParquetFile: ...",
    "wandb.py": "",
    "ogb/__init__.py": "",
    "ogb/lsc/__init__.py": "class PCQM4Mv2Dataset: ...",
}


def stand_ins(folder: Path) -> None:
    for name, text in UNUSED.items():
        if (
            importlib.util.find_spec(name.partition("/")[0].removesuffix(".py")) is None
            or (folder / name).parent.exists()
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text + "\n")
    sys.path.append(str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (os.environ.get("PYTHONPATH"), str(folder)))
    )


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # the package prints
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        stand_ins(Path(folder))
        import torch
        from minimol import Minimol

        encoder = Minimol()
        for line in sys.stdin:
            asked = json.loads(line)
            if asked.get("weights"):
                encoder.predictor.predictor.load_state_dict(
                    torch.load(asked["weights"]), strict=False
                )
            torch.save(torch.stack(encoder(asked["smiles"])), asked["out"])
            print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()
