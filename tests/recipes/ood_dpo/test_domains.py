import numpy as np

from recipes.ood_dpo.domains import describe, descriptors


def test_a_molecule_is_known_by_its_canonical_smiles_size_rings_and_scaffold():
    ibuprofen = describe("OC(=O)C(C)c1ccc(CC(C)C)cc1", scaffold=True)
    assert ibuprofen is not None and (
        ibuprofen.heavy_atoms,
        ibuprofen.rings,
        ibuprofen.scaffold,
    ) == (15, 1, "c1ccccc1")
    assert describe("OCC") == describe("C(C)O") and describe("OCC").canonical == "CCO"
    assert describe("CCO", scaffold=True).scaffold == ""  # no ring, no scaffold
    assert describe("c1ccc2ccccc2c1").rings == 2


def test_what_is_no_molecule_has_no_description():
    for smiles in ("C1CC", "", "no molecule", "C(C)(C)(C)(C)C"):
        assert describe(smiles) is None and describe(smiles, scaffold=True) is None


def test_descriptors_are_heavy_atoms_and_rings():
    made = descriptors(["CCO", "c1ccc2ccccc2c1", "C1CC"])
    assert (
        made.dtype == np.float32
        and made[:2].tolist() == [[3, 0], [10, 2]]
        and np.isnan(made[2]).all()
    )
    assert descriptors([]).shape == (0, 2)
