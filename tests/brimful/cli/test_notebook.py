"""Notebooks, in IPython's own shell."""

import atexit

import pytest

from brimful.show.text import bytes_text
from brimful.values import Audit, Plan, Prediction, Record
from tests.brimful.show import product
from tests.brimful.show.test_html import Reader

pytest.importorskip("IPython")
from IPython.core.interactiveshell import InteractiveShell


@pytest.fixture
def bare_shell(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shell = InteractiveShell()
    yield shell
    atexit.unregister(shell.atexit_operations)
    shell.atexit_operations()
    shell.restore_sys_module_state()


@pytest.fixture
def shell(bare_shell):
    bare_shell.run_line_magic("load_ext", "brimful")
    return bare_shell


def page_in(shown: dict[str, str]) -> str:
    """The page within what a notebook shows of a value."""
    reader = Reader(shown["text/html"])
    assert not reader.open and not reader.misnested
    ((tag, attributes),) = reader.tags
    page = attributes["srcdoc"]
    assert tag == "iframe" and "src" not in attributes and page is not None
    return page


def values() -> list[Record | Prediction | Plan | Audit]:
    prediction = product.ALL["predict-out-of-memory"]().prediction
    plan, audit = product.ALL["tune-cpu"]().plan, product.ALL["audit"]()
    assert prediction and plan and audit.audit
    return [prediction, plan, audit.audit, audit, product.ALL["hostile"]()]


@pytest.mark.parametrize("in_jupyter", [False, True])
def test_records_and_their_answers_show_themselves_as_pages_of_their_own_and_as_text(
    shell, monkeypatch, in_jupyter
):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: in_jupyter)
    for value in values():
        shown, _ = shell.display_formatter.format(value)
        page = page_in(shown)
        reader = Reader(page)
        assert page.startswith("<!doctype html>") and not reader.misnested and not reader.fetches()
        assert "prefers-color-scheme: dark" in page and "Content-Security-Policy" in page
        assert not shown["text/plain"].startswith(type(value).__name__ + "(")
        assert "1970" not in page + shown["text/plain"], "nobody knows when it was found"
        if isinstance(value, Prediction) and value.peak is not None:
            size = bytes_text(value.peak.device_bytes)
            assert size in " ".join(reader.text.split()) and size in shown["text/plain"]


def test_without_the_extension_values_are_shown_as_before(bare_shell):
    shown, _ = bare_shell.display_formatter.format(product.ALL["audit"]().audit)
    assert list(shown) == ["text/plain"] and shown["text/plain"].startswith("Audit(")
