"""MiniMol's features against those of its own package, which bench/ood_minimol.py wrote down, and
what they are made of.
"""

import json
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from bench.ood_minimol import made_weights
from brimful.errors import UsageError
from recipes.common.cache import cache_folder
from recipes.ood_dpo.encoders import encoder, minimol
from recipes.ood_dpo.encoders.minimol import Batch, Graph, Network, graph_of
from recipes.ood_dpo.settings import EncoderOptions

CPU = torch.device("cpu")
STRIDE = 8
with safe_open(Path(__file__).with_name("minimol_reference.safetensors"), "numpy") as file:
    REFERENCE = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    SMILES = json.loads(file.metadata()["smiles"])


@pytest.fixture(scope="module")
def graphs() -> list[Graph]:
    """With the eigenvectors of the reference: their signs may be others with another LAPACK."""
    graphs = [graph for smiles in SMILES if (graph := graph_of(smiles)) is not None]
    ends = np.cumsum([0, *(len(graph.atoms) for graph in graphs)])
    parts = [(REFERENCE["spectrum"][a:b], REFERENCE["returns"][a:b]) for a, b in pairwise(ends)]
    return [
        graph._replace(spectrum=part[0], returns=part[1])
        for graph, part in zip(graphs, parts, strict=True)
    ]


@pytest.fixture(scope="module")
def made() -> Network:
    network = Network()
    network.load_state_dict(
        {name: made_weights(name, tensor) for name, tensor in network.state_dict().items()}
    )
    return network.eval()


def features(network: Network, graphs: list[Graph]) -> np.ndarray:
    with torch.inference_mode():
        return network(Batch.of(graphs, CPU)).numpy()


def test_made_weights_give_the_features_that_the_package_has_with_them(
    made: Network, graphs: list[Graph]
) -> None:
    ours = features(made, graphs)
    np.testing.assert_allclose(
        ours[:, ::STRIDE], REFERENCE["features of made weights"], atol=1e-5, rtol=0
    )


def test_the_wheels_weights_give_the_features_of_the_package(graphs: list[Graph]) -> None:
    try:
        wheel = minimol.WHEEL.fetch(cache_folder("ood_dpo") / "wheels", print)
    except UsageError as error:
        pytest.skip(error.problem)
    ours = features(minimol.network_of(minimol.read_checkpoint(wheel)), graphs)
    np.testing.assert_allclose(ours[:, ::STRIDE], REFERENCE["features"], atol=1e-5, rtol=0)


def test_a_molecule_has_the_same_features_alone_and_beside_others(
    made: Network, graphs: list[Graph]
) -> None:
    together = features(made, graphs)
    alone = np.concatenate([features(made, [graph]) for graph in graphs])
    np.testing.assert_allclose(alone, together, atol=1e-5, rtol=0)


@pytest.mark.parametrize("smiles", SMILES)
def test_the_spectrum_is_that_of_the_laplacian(smiles: str) -> None:
    graph = graph_of(smiles)
    size, lowest = len(graph.atoms), min(len(graph.atoms), minimol.EIGENVECTORS)
    laplacian = np.zeros((size, size))
    for a, b in graph.bonds[:2].T:
        laplacian[[a, b], [a, b]] += 1
        laplacian[[a, b], [b, a]] -= 1
    values, vectors = graph.spectrum[..., 0].astype(float), graph.spectrum[..., 1].astype(float)
    np.testing.assert_allclose(laplacian @ vectors, values * vectors, atol=5e-3)
    if "." not in smiles:
        np.testing.assert_allclose(
            values[0, :lowest], np.linalg.eigvalsh(laplacian)[:lowest], atol=5e-3
        )
        np.testing.assert_allclose((vectors[:, :lowest] ** 2).sum(0), 1, atol=5e-3)
    assert not vectors[:, lowest:].any()


def test_each_part_of_a_salt_has_its_own_spectrum() -> None:
    graph = graph_of("CC.[Na+]")
    sodium = graph.atoms[:, 1].argmax()
    assert graph.spectrum[sodium].tolist() == [[0, 1], *[[0, 0]] * 7]
    assert graph.returns[sodium].tolist() == [0] * 16


def test_a_random_walk_on_a_ring_is_back_after_two_steps_half_of_the_times() -> None:
    assert graph_of("C1CCCCC1").returns[0, :4].tolist() == [0, 0.5, 0, 0.375]
    assert graph_of("C").returns.tolist() == [[1] * 16]


@pytest.mark.parametrize("smiles", ["", "C1CC", "c1ccccc", "no molecule"])
def test_what_rdkit_does_not_understand_is_no_graph(smiles: str) -> None:
    assert graph_of(smiles) is None


def test_the_order_of_the_atoms_in_the_smiles_does_not_matter() -> None:
    one, other = graph_of("OCC(N)=O"), graph_of("NC(=O)CO")
    for name in ("atoms", "spectrum", "returns"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_the_encoder_needs_no_weights_before_it_encodes_and_its_preparation_can_be_sent(
    tmp_path: Path,
) -> None:
    made = encoder(EncoderOptions(encoder="minimol", cache=tmp_path), "cpu")
    assert made.width == 512 and len(made.key) == 16
    prepared = pickle.loads(pickle.dumps(made.prepare))("CCO")
    assert made.cost(prepared) == 3
    assert not list(tmp_path.iterdir())
