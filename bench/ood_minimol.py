"""MiniMol as recipes.ood_dpo writes it out, against the package: features of 1,000 molecules of
MoleculeACE.

`python -m bench.ood_minimol --original .venv-minimol/bin/python` (make bench-ood-minimol). With
--write-reference it writes what tests/recipes/ood_dpo/test_minimol.py compares with where the
package is not installed: the package's features of a few molecules, with its own weights and with
made ones, every STRIDE-th of each.
"""

import json
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from bench import harness
from recipes.common.cache import cache_folder
from recipes.common.running import say
from recipes.ood_dpo.encoders import minimol
from recipes.ood_dpo.settings import DatasetOptions
from recipes.ood_dpo.sources import read_rows

REFERENCE = harness.ROOT / "tests" / "recipes" / "ood_dpo" / "minimol_reference.safetensors"
LIMIT = 1e-5
STRIDE = 8
BATCH = 64
# small and large, charged, salts, stereo bonds, isotopes, radicals, metals; cubane has equal
# eigenvalues
CHOSEN = (
    *(
        "C",
        "CCO",
        "C1CC1",
        "[CH3]",
        "C#N",
        "C/C=C/C(=O)O",
        "C/C=C\\C(=O)O",
        "[O-][N+](=O)c1ccccc1",
        "C12C3C4C1C5C2C3C45",
    ),
    *(
        "CC(=O)Oc1ccccc1C(=O)O",
        "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
        "CC(C)NCC(O)COc1cccc2ccccc12.Cl",
        "[2H]C([2H])([2H])O",
    ),
    *(
        "FC(F)(F)c1ccc(Br)cc1I",
        "OB(O)c1ccccc1",
        "CS(=O)(=O)Nc1ccc2[nH]ncc2c1",
        "[Pt](Cl)(Cl)(N)N",
        "C[C@H](N)C(=O)O",
    ),
    *("CCCCCCCCCCCCCCCC(=O)[O-].[Na+]", "CC1=CN2CC(=O)NN=C2C=C1"),
)


class Original:
    """The package in a process of another Python."""

    def __init__(self, python: Path, folder: Path) -> None:
        command = [str(python), str(Path(__file__).with_name("ood_minimol_original.py"))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._out = folder / "original.pt"

    def encode(self, smiles: list[str], weights: Path | None = None) -> np.ndarray:
        """Their features."""
        assert self._process.stdin is not None and self._process.stdout is not None
        asked = {"smiles": smiles, "out": str(self._out), "weights": weights and str(weights)}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        if not self._process.stdout.readline():
            sys.exit(
                "The package's process ended; run bench/ood_minimol_original.py in its "
                "environment to see why."
            )
        return torch.load(self._out).numpy()

    def close(self) -> None:
        self._process.communicate()


def moleculeace(count: int) -> list[str]:
    """Spread over its 30 targets."""
    rows = read_rows(DatasetOptions(dataset="moleculeace:all"), say)
    smiles = list(dict.fromkeys(rows.smiles))
    return smiles[:: max(1, len(smiles) // count)][:count]


def made_weights(name: str, tensor: Tensor) -> Tensor:
    """Numbers that follow from the name of a weight of `minimol.Network`: no download is needed to
    have them.
    """
    values = torch.from_numpy(
        np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(tensor.shape))
    ).float()
    scale = tensor.shape[-1] ** -0.5 if tensor.dim() == 2 else 0.1
    return values * scale + (
        1 if name.endswith("norm.weight") or name.startswith("returns_norm.weight") else 0
    )


def made_checkpoint(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: made_weights(minimol.our_name(name), tensor) for name, tensor in checkpoint.items()
    }


def ours(network: minimol.Network, graphs: list[minimol.Graph]) -> np.ndarray:
    with torch.inference_mode():
        parts = [
            network(minimol.Batch.of(graphs[at : at + BATCH], torch.device("cpu")))
            for at in range(0, len(graphs), BATCH)
        ]
    return torch.cat(parts).numpy()


def write_features(features: dict[str, np.ndarray], graphs: list[minimol.Graph]) -> None:
    """Eigenvectors and return probabilities with them, as the features depend on their last digits
    and signs.
    """
    arrays: dict[str, Any] = {
        name: np.ascontiguousarray(array[:, ::STRIDE]) for name, array in features.items()
    }
    arrays["spectrum"] = np.concatenate([graph.spectrum for graph in graphs])
    arrays["returns"] = np.concatenate([graph.returns for graph in graphs])
    save_file(
        arrays,
        REFERENCE,
        {"smiles": json.dumps(CHOSEN), "made by": "bench/ood_minimol.py --write-reference"},
    )
    print(f"{REFERENCE.relative_to(harness.ROOT)}: {REFERENCE.stat().st_size:,} bytes")


def main(
    *,
    original: Annotated[Path, "the Python of an environment that has minimol"],
    molecules: int = 1_000,
    write_reference: Annotated[bool, "what the tests compare with"] = False,
) -> None:
    checkpoint = minimol.read_checkpoint(
        minimol.WHEEL.fetch(cache_folder("ood_dpo") / "wheels", say)
    )
    network, worst = minimol.network_of(checkpoint), 0.0
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.pt"
        torch.save(made_checkpoint(checkpoint), made)
        package, theirs = Original(original, Path(folder)), {}
        for what, smiles in (
            ("chosen", list(CHOSEN)),
            ("of MoleculeACE", moleculeace(molecules)),
        ):
            graphs = [graph for graph in map(minimol.graph_of, smiles) if graph is not None]
            theirs[what] = package.encode(smiles)
            apart = np.abs(ours(network, graphs) - theirs[what]).max(axis=1)
            worst = max(worst, float(apart.max()))
            print(
                f"{len(smiles):,} molecules {what}: at most {apart.max():.1e} apart, median "
                f"{np.median(apart):.1e}"
            )
        chosen = [graph for graph in map(minimol.graph_of, CHOSEN) if graph is not None]
        theirs["made"] = package.encode(list(CHOSEN), made)
        apart = np.abs(
            ours(minimol.network_of(made_checkpoint(checkpoint)), chosen) - theirs["made"]
        ).max()
        print(f"{len(CHOSEN)} molecules chosen, made weights: at most {apart:.1e} apart")
        package.close()
    if write_reference:
        write_features(
            {"features": theirs["chosen"], "features of made weights": theirs["made"]}, chosen
        )
    if max(worst, float(apart)) > LIMIT:
        sys.exit(f"More than {LIMIT} apart.")


if __name__ == "__main__":
    harness.run(main)
