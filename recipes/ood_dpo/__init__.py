"""Molecules out of distribution: a small energy head on frozen features, trained by a preference
over pairs (arXiv 2509.25509).

    python -m recipes.ood_dpo train --dataset moleculeace:CHEMBL204_Ki

`recipe.py` is one training, from top to bottom. Importing this package imports no torch.
"""
