"""Whole trainings, written on `brimful_train`: `python -m recipes.NAME` from a clone. Read one,
copy it, change it.
"""
