"""Fixtures that run scripts as trials; see helper.py."""

import functools
import importlib.util
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("brimful_inside_test_helper", Path(__file__).with_name("helper.py"))
helper = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = helper  # where dataclasses look their module up
_SPEC.loader.exec_module(helper)


@pytest.fixture
def run_trial(tmp_path):
    """run_trial(script or arguments, **orders and options) -> Trial."""
    return functools.partial(helper.run_trial, tmp_path)


@pytest.fixture
def run_plainly(tmp_path):
    """run_plainly(script, *argv): the same without brimful."""
    return functools.partial(helper.run_plainly, tmp_path)


@pytest.fixture(scope="session")
def contents():
    return helper.contents


@pytest.fixture(scope="session")
def bootstrap():
    return helper.BOOTSTRAP
