"""What `fit` raises as the end of a script."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from brimful.errors import DoesNotFit, Terminated
from brimful.train import exit_codes
from brimful_inside.probe import context as process_context
from brimful_inside.probe.hooks.exceptions import Failures


@pytest.mark.parametrize(("error", "code"), [(DoesNotFit("too large", "it is", "make it smaller"), 3), (Terminated(), 143)])
def test_an_error_ends_the_script_with_its_code_and_its_sentences(error, code, capsys):
    with pytest.raises(SystemExit) as ended, exit_codes():
        raise error
    assert ended.value.code == code
    assert capsys.readouterr().err.splitlines() == list(error.sentences())


def test_another_rank_says_a_line(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit), exit_codes():
        raise DoesNotFit("too large", "it is", "make it smaller")
    assert capsys.readouterr().err == "rank 1: too large\n"


def test_an_error_of_the_script_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), exit_codes():
        raise ZeroDivisionError


def test_who_looks_on_hears_of_the_error_as_of_one_that_nobody_caught(monkeypatch):
    told = []
    probe = SimpleNamespace(failures=Failures(told.append, lambda: ("train", 4, False)))
    monkeypatch.setattr(process_context, "hub", SimpleNamespace(probe=probe))
    with pytest.raises(SystemExit), exit_codes():
        raise DoesNotFit("too large", "it is", "make it smaller")
    (failure,) = told
    assert (failure.type, failure.message, failure.caught) == ("brimful.errors.DoesNotFit", "too large", False)
