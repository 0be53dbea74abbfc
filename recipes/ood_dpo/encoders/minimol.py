"""MiniMol (Kläser et al. 2024, arXiv 2404.14986): a graph network of 10 M parameters, of which a
molecule's features are read.

The network is written out here and takes its weights from the `minimol` wheel; the molecules are
described to it exactly as `graphium` 2.4.7, which it was trained with, describes them.
bench/ood_minimol.py compares the two.

Of the eigenvectors of a molecule's Laplacian the network sees sign and basis, which are arbitrary:
whatever LAPACK's solver of
*general* matrices returns for the atoms in RDKit's canonical order. So the features are those of
the original package where RDKit and LAPACK are the same, and `key` names their versions.
"""

import io
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import rdkit
import scipy
import torch
from rdkit import Chem, rdBase
from scipy.linalg import eig
from torch import Tensor, nn
from torch.nn.functional import gelu, relu

from recipes.common.cache import cache_folder
from recipes.common.running import say
from recipes.common.wheels import Wheel
from recipes.ood_dpo.encoders import Encoder
from recipes.ood_dpo.settings import EncoderOptions

WHEEL = Wheel(
    "minimol", "1.3.5", "faa431c550682dfeed9f5b5503e3efef2a3d85a782afa256150449bb209f9eda"
)
WEIGHTS = "minimol/ckpts/minimol_v1/state_dict.pth"
LAYERS, WIDTH, FEATURES = 16, 336, 512
EIGENVECTORS, STEPS = 8, 16
# of a batch; more are no faster on a CPU, and take some 10 KiB each
ATOMS_ON_CPU, ATOMS_ON_A_CARD = 2_048, 65_536

# --- a molecule as arrays ---

KNOWN = (
    "C N O S F Si P Cl Br Mg Na Ca Fe As Al I B V K Tl Yb Sb Sn Ag Pd Co Se Ti Zn H Li Ge Cu Au "
    "Ni Cd In Mn Zr Cr Pt Hg Pb"
)
SYMBOLS = KNOWN.split()
# of the elements of a period, by its length; 19 stands for what follows lanthanum and actinium
GROUPS = {
    2: (1, 18),
    8: (1, 2, *range(13, 19)),
    18: range(1, 19),
    32: (1, 2, 3, *[19] * 14, *range(4, 19)),
}
BOND_TYPES = [
    Chem.BondType.SINGLE,
    Chem.BondType.DOUBLE,
    Chem.BondType.TRIPLE,
    Chem.BondType.AROMATIC,
]
STEREO = [
    *(Chem.BondStereo.STEREONONE, Chem.BondStereo.STEREOANY, Chem.BondStereo.STEREOZ),
    *(Chem.BondStereo.STEREOE, Chem.BondStereo.STEREOCIS, Chem.BondStereo.STEREOTRANS),
]
# total degree - 2, charge, unpaired electrons, aromatic, in a ring; then four one-hot encodings,
# "other" last:
NUMBERS = 5
SYMBOL, GROUP, PERIOD, VALENCE, ATOM = np.cumsum(
    [NUMBERS, len(SYMBOLS) + 1, 19 + 1, 7 + 1, 7 + 1]
).tolist()
BOND = (len(BOND_TYPES) + 1) + (len(STEREO) + 1) + 1  # two one-hot encodings and "in a ring"
BOND_KINDS = (len(BOND_TYPES) + 1) * (len(STEREO) + 1) * 2


def _element_columns() -> list[tuple[int, int, int]]:
    """By atomic number: where symbol, group and period are 1. An atom of unknown kind is the last
    element, as in graphium.
    """
    names, rows = Chem.GetPeriodicTable(), []
    for period, length in enumerate((2, 8, 8, 18, 18, 32, 32)):
        for group in GROUPS[length]:
            name = names.GetElementSymbol(len(rows) + 1)
            symbol = SYMBOLS.index(name) if name in SYMBOLS else len(SYMBOLS)
            rows.append((SYMBOL + symbol, GROUP + group - 1, PERIOD + period))
    return [(SYMBOL + len(SYMBOLS), *rows[-1][1:]), *rows]


ELEMENTS = _element_columns()


class Graph(NamedTuple):
    """Features are rounded to float16, as the network saw them in its training."""

    atoms: np.ndarray  # float16 (atoms, ATOM)
    bonds: np.ndarray  # int64 (3, bonds): both ends, and which of BOND_KINDS
    # float16 (atoms, EIGENVECTORS, 2): eigenvalue of the Laplacian, the eigenvector's value at the
    # atom
    spectrum: np.ndarray
    # float16 (atoms, STEPS): the probability that a random walk is back at the atom after so many
    # steps
    returns: np.ndarray


def graph_of(smiles: str) -> Graph | None:
    """None where RDKit does not understand it."""
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
        if molecule is None or molecule.GetNumAtoms() == 0:
            return None
        ranks = list(Chem.CanonicalRankAtoms(molecule))
        molecule = Chem.RemoveHs(
            Chem.RenumberAtoms(molecule, sorted(range(len(ranks)), key=ranks.__getitem__))
        )
    bonds = np.array([_bond(bond) for bond in molecule.GetBonds()], dtype=np.int64).reshape(-1, 3).T
    adjacency = np.zeros((molecule.GetNumAtoms(),) * 2)
    adjacency[bonds[0], bonds[1]] = adjacency[bonds[1], bonds[0]] = 1
    return Graph(
        _atoms(molecule),
        bonds,
        _spectrum(adjacency, Chem.GetMolFrags(molecule)),
        _returns(adjacency),
    )


def _atoms(molecule: Chem.Mol) -> np.ndarray:
    atoms = list(molecule.GetAtoms())
    ones = [
        (*ELEMENTS[atom.GetAtomicNum()], VALENCE + min(atom.GetTotalValence(), 7)) for atom in atoms
    ]
    rows = np.zeros((len(atoms), ATOM), dtype=np.float16)
    rows[np.arange(len(atoms))[:, None], ones] = 1
    rows[:, :NUMBERS] = [
        (
            atom.GetTotalDegree() - 2,
            atom.GetFormalCharge(),
            atom.GetNumRadicalElectrons(),
            atom.GetIsAromatic(),
            atom.IsInRing(),
        )
        for atom in atoms
    ]
    return rows


def _bond(bond: Chem.Bond) -> tuple[int, int, int]:
    kind, stereo = bond.GetBondType(), bond.GetStereo()
    kind = BOND_TYPES.index(kind) if kind in BOND_TYPES else len(BOND_TYPES)
    stereo = STEREO.index(stereo) if stereo in STEREO else len(STEREO)
    return (
        bond.GetBeginAtomIdx(),
        bond.GetEndAtomIdx(),
        (kind * (len(STEREO) + 1) + stereo) * 2 + bond.IsInRing(),
    )


def _bond_kinds() -> Tensor:
    """float32 (BOND_KINDS, BOND): what the numbers that `_bond` gives stand for."""
    kinds = torch.cartesian_prod(
        torch.arange(len(BOND_TYPES) + 1), torch.arange(len(STEREO) + 1), torch.arange(2)
    )
    one_hot = nn.functional.one_hot
    parts = (
        one_hot(kinds[:, 0], len(BOND_TYPES) + 1),
        one_hot(kinds[:, 1], len(STEREO) + 1),
        kinds[:, 2:],
    )
    return torch.cat(parts, dim=1).float()


def _spectrum(adjacency: np.ndarray, parts: Sequence[Sequence[int]]) -> np.ndarray:
    """Each part of a molecule that hangs together has a spectrum of its own."""
    laplacian = np.diag(adjacency.sum(1)) - adjacency
    values = np.zeros((len(adjacency), EIGENVECTORS, 2), dtype=np.float32)
    for part in parts:
        atoms = list(
            set(part)
        )  # not sorted where numbers are large: graphium's order, on which the signs depend
        values[atoms] = _lowest(laplacian[np.ix_(atoms, atoms)])
    return values.astype(np.float16)


def _lowest(laplacian: np.ndarray) -> np.ndarray:
    """(atoms, EIGENVECTORS, 2), of the lowest eigenvalues; zeros where a small molecule has fewer.
    Lengths are made 1 without conjugation, and a complex number loses its imaginary part:
    graphium's way with a pair that rounding made complex."""
    eigenvalues, vectors = cast("tuple[np.ndarray, np.ndarray]", eig(laplacian, check_finite=False))
    order = eigenvalues.argsort()[:EIGENVECTORS]
    vectors = vectors[:, order]
    vectors = vectors / np.maximum(np.sqrt(np.sum(vectors**2, axis=0, keepdims=True)), 1e-4)
    lowest = np.zeros((len(laplacian), EIGENVECTORS, 2))
    lowest[:, : len(order), 0] = np.real(eigenvalues[order])
    lowest[:, : len(order), 1] = np.real(vectors)
    return lowest


def _returns(adjacency: np.ndarray) -> np.ndarray:
    """In float32 and by torch, step by step and in one thread: so float16 rounds the numbers that
    graphium has, and two threads would take many times as long for matrices this small."""
    if len(adjacency) == 1:
        return np.ones((1, STEPS), dtype=np.float16)
    degrees = adjacency.sum(1, keepdims=True)
    step = torch.from_numpy(
        np.divide(adjacency, degrees, where=degrees > 0, out=np.zeros_like(adjacency))
    ).float()[None]
    walked, returns, threads = step, [], torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(STEPS):
        returns.append(walked[0].diagonal())
        walked = walked @ step
    torch.set_num_threads(threads)
    return torch.stack(returns, dim=1).numpy().astype(np.float16)


# --- the network ---


def dense(
    inputs: int, outputs: int, norm: bool = False, activation: nn.Module | None = None
) -> nn.Sequential:
    parts = OrderedDict[str, nn.Module](linear=nn.Linear(inputs, outputs))
    if norm:
        parts["norm"] = nn.LayerNorm(outputs)
    if activation is not None:
        parts["activation"] = activation
    return nn.Sequential(parts)


class Batch(NamedTuple):
    """Molecules side by side: no size of a tensor depends on what is on the device."""

    atoms: Tensor  # (atoms of all molecules, ATOM)
    spectrum: Tensor
    returns: Tensor
    molecule: Tensor  # (atoms,): which molecule an atom is of
    bonds: Tensor  # (3, bonds): from, to, kind; each bond in both directions
    sizes: Tensor  # float32 (molecules, 1): how many atoms each has

    @classmethod
    def of(cls, graphs: Sequence[Graph], device: torch.device | str) -> "Batch":
        sizes = np.array([len(graph.atoms) for graph in graphs])
        starts = np.cumsum(sizes) - sizes
        moved = [
            graph.bonds + np.array([[at], [at], [0]])
            for graph, at in zip(graphs, starts, strict=True)
        ]
        bonds = np.concatenate(moved, axis=1)
        joined = [
            np.concatenate([getattr(graph, name) for graph in graphs])
            for name in ("atoms", "spectrum", "returns")
        ]
        arrays = (
            *(array.astype(np.float32) for array in joined),
            np.repeat(np.arange(len(sizes)), sizes),
            np.concatenate([bonds, bonds[[1, 0, 2]]], axis=1),
            sizes.astype(np.float32)[:, None],
        )
        return cls(*(torch.from_numpy(array).to(device) for array in arrays))


class Layer(nn.Module):
    """GINE (Hu et al. 2020): an atom adds up what its bonds and their other ends say."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bond = nn.Linear(168, inputs)
        self.eps = nn.Parameter(torch.zeros(1))
        self.update = nn.Sequential(dense(inputs, inputs, True, nn.GELU()), dense(inputs, outputs))
        self.norm = nn.LayerNorm(outputs)

    def forward(self, atoms: Tensor, bond_kinds: Tensor, bonds: Tensor) -> Tensor:
        messages = relu(atoms[bonds[0]] + self.bond(bond_kinds)[bonds[2]])
        heard = torch.zeros_like(atoms).index_add(0, bonds[1], messages)
        return gelu(self.norm(self.update(heard + atoms * (1 + self.eps))))


class VirtualNode(nn.Module):
    """One more node, joined to every atom of its molecule."""

    def __init__(self) -> None:
        super().__init__()
        self.update = dense(WIDTH, WIDTH, True, nn.GELU())
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, atoms: Tensor, virtual: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        pooled = (
            torch.zeros_like(virtual).index_add(0, batch.molecule, atoms)
            / batch.sizes
            * batch.sizes.log()
        )
        virtual = virtual + self.update(virtual + pooled)
        return atoms + self.project(virtual / 2)[
            batch.molecule
        ], virtual  # / 2: its μP width against its base network's


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kinds", _bond_kinds(), persistent=False)
        self.spectrum_in, self.spectrum_out = dense(2, 64), dense(64, 32)
        self.spectrum = nn.Sequential(dense(64, 64, activation=nn.ReLU()), dense(64, 64))
        self.returns_norm = nn.LayerNorm(STEPS)
        self.returns = nn.Sequential(
            dense(STEPS, 64, True, nn.ReLU()), dense(64, 32, True, nn.ReLU())
        )
        self.atoms = nn.Sequential(dense(ATOM + 32, 256, True, nn.ReLU()), dense(256, 128, True))
        self.bonds = nn.Sequential(dense(BOND, 128, True, nn.ReLU()), dense(128, 168, True))
        widths = [128, *[WIDTH] * (LAYERS - 1), FEATURES]
        self.layers = nn.ModuleList(Layer(*sizes) for sizes in pairwise(widths))
        self.virtual = nn.ModuleList(VirtualNode() for _ in range(LAYERS - 1))

    def forward(self, batch: Batch) -> Tensor:
        """(molecules, FEATURES): the largest of each feature over a molecule's atoms."""
        position = self.spectrum_out(self.spectrum(self.spectrum_in(batch.spectrum)).sum(1))
        position = position + self.returns(self.returns_norm(batch.returns))
        atoms = self.atoms(torch.cat([position, batch.atoms], dim=1))
        bond_kinds = self.bonds(self.kinds)  # far fewer than there are bonds
        before, virtual = 0.0, atoms.new_zeros(len(batch.sizes), WIDTH)
        for layer, node in zip(self.layers, self.virtual, strict=False):
            before = before + layer(atoms, bond_kinds, batch.bonds)
            atoms, virtual = node(before, virtual, batch)
        atoms = self.layers[-1](atoms, bond_kinds, batch.bonds)
        largest = atoms.new_full((len(batch.sizes), FEATURES), -torch.inf)
        return largest.scatter_reduce(0, batch.molecule[:, None].expand_as(atoms), atoms, "amax")


RENAMED = (  # what the checkpoint calls the parts
    ("encoder_manager.pe_encoders.la_pos.linear_in", "spectrum_in"),
    ("encoder_manager.pe_encoders.la_pos.pe_encoder.fully_connected", "spectrum"),
    ("encoder_manager.pe_encoders.la_pos.post_mlp.fully_connected.0", "spectrum_out"),
    ("encoder_manager.pe_encoders.rw_pos.pe_encoder.first_normalization", "returns_norm"),
    ("encoder_manager.pe_encoders.rw_pos.pe_encoder.fully_connected", "returns"),
    *(("pre_nn.layers", "atoms"), ("pre_nn_edges.layers", "bonds")),
    *(
        ("gnn.virtual_node_layers", "virtual"),
        (".fc_layer.", ".update."),
        (".node_projection.", ".project."),
    ),
    *(
        ("gnn.layers", "layers"),
        (".model.nn.fully_connected", ".update"),
        (".model.lin", ".bond"),
        (".model.eps", ".eps"),
    ),
    *((".norm_layer.", ".norm."), (".normalization.", ".norm.")),
)


def our_name(theirs: str) -> str:
    name = theirs.removeprefix("model.")
    for before, after in RENAMED:
        name = name.replace(before, after)
    return name


def network_of(checkpoint: Mapping[str, Tensor]) -> Network:
    """With the weights of the original, in float32. The heads of its training's tasks, which it has
    too, are left out.
    """
    network = Network()
    state = {our_name(name): tensor.float() for name, tensor in checkpoint.items()}
    network.load_state_dict({name: state[name] for name in network.state_dict()})
    return network.eval()


# --- the encoder ---


class MiniMol(Encoder):
    """The wheel with its weights is fetched at the first `encode`, which raises UsageError where it
    cannot be had.
    """

    name, prepare = "minimol", staticmethod(graph_of)

    def __init__(self, options: EncoderOptions, device: str) -> None:
        versions = f"{WHEEL.sha256} rdkit {rdkit.__version__} scipy {scipy.__version__}"
        super().__init__(versions.encode(), device, ATOMS_ON_CPU, ATOMS_ON_A_CARD)
        self._folder = (options.cache or cache_folder("ood_dpo")) / "wheels"

    @cached_property
    def network(self) -> Network:
        wheel = WHEEL.fetch(self._folder, say)
        return network_of(read_checkpoint(wheel)).to(self.device)

    def cost(self, prepared: Graph) -> float:
        """Its atoms: the network's memory is linear in them."""
        return float(len(prepared.atoms))

    @torch.inference_mode()
    def encode(self, prepared: Sequence[Graph]) -> np.ndarray:
        return self.network(Batch.of(prepared, self.device)).cpu().numpy()


def read_checkpoint(wheel: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(wheel) as archive:
        return torch.load(io.BytesIO(archive.read(WEIGHTS)), weights_only=True, map_location="cpu")
