"""Fixtures that run scripts as trials; see helper.py."""

import functools

import pytest

from tests.brimful_inside import helper


@pytest.fixture
def run_trial(tmp_path):
    """run_trial(script or arguments, **fields of TrialConfig and options) -> Trial."""
    return functools.partial(helper.run_trial, tmp_path)
