import numpy as np

from recipes.ood_dpo.encoders import encoder
from recipes.ood_dpo.features import encode
from recipes.ood_dpo.settings import EncoderOptions


def test_a_fingerprint_is_512_bits_that_like_molecules_share():
    made, failed = encode(
        encoder(EncoderOptions(encoder="morgan"), "cpu"),
        ["CCCCO", "OCCCC", "CCCCCO", "c1ccncc1", "C1CC"],
    )
    assert failed == [4] and made.shape == (4, 512) and set(np.unique(made)) == {0, 1}
    assert np.array_equal(made[0], made[1])  # the same molecule
    assert (made[0] * made[2]).sum() > (made[0] * made[3]).sum()
