"""Waiting for modules: the callback comes right after the code, and the garbage collector may rest
meanwhile.
"""

import gc
import importlib
import sys

import pytest

from brimful_inside.probe.import_hooks import ImportHooks


@pytest.fixture
def wait(tmp_path, monkeypatch):
    """wait(source, quietly) -> whether the collector was on while the module loaded, when called
    back, and after.
    """
    name = "awaited_by_a_test"

    def run(source="", quietly=True):
        (tmp_path / f"{name}.py").write_text("import gc\nduring = gc.isenabled()\n" + source)
        seen = {}
        waiting = ImportHooks()
        if quietly:
            waiting.load_quietly(name)
        waiting.when_imported(
            name, lambda module: seen.update(during=module.during, called=gc.isenabled())
        )
        try:
            importlib.import_module(name)
        finally:
            sys.meta_path.remove(waiting)
            sys.modules.pop(name, None)
            seen["after"] = gc.isenabled()
        return seen

    monkeypatch.syspath_prepend(str(tmp_path))
    assert gc.isenabled()
    yield run
    gc.enable()


@pytest.mark.parametrize(("on", "quietly"), [(True, True), (True, False), (False, True)])
def test_the_collector_rests_while_a_module_loads_where_asked_and_is_as_before_at_the_callback(
    wait, on, quietly
):
    if not on:
        gc.disable()
    assert wait(quietly=quietly) == {"during": on and not quietly, "called": on, "after": on}


def test_it_is_on_again_after_a_module_that_fails(wait):
    with pytest.raises(ZeroDivisionError):
        wait("1 / 0")
    assert gc.isenabled()


def test_what_a_module_made_is_set_aside_only_where_that_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    before = gc.get_freeze_count()
    try:
        for name, sets_aside in (("collected_by_a_test", False), ("set_aside_by_a_test", True)):
            (tmp_path / f"{name}.py").write_text("made = [[] for _ in range(1000)]\n")
            waiting = ImportHooks()
            waiting.load_quietly(name, sets_aside)
            importlib.import_module(name)
            sys.meta_path.remove(waiting)
            sys.modules.pop(name)
            assert (gc.get_freeze_count() - before >= 1000) is sets_aside
    finally:
        gc.unfreeze()
