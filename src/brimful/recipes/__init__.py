"""Whole trainings, written on `brimful.train`: each one is run as `python -m brimful.recipes.NAME`."""
