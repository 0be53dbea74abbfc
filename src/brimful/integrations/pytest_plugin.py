"""pytest: a test's CUDA code on a card that is not there, and a limit of what it takes there.

    @pytest.mark.limit_gpu_memory("20 GiB", gpu="a100-40gb")
    def test_a_step_fits(): ...

    @pytest.mark.parametrize("imaginary_gpu", ["2 GiB"], indirect=True)
    def test_we_go_on_after_out_of_memory(imaginary_gpu): ...

The card is there from before the test's other fixtures of its scope until they are gone, in the
process of the tests; no other test sees it. torch and the card are imported for such tests alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from brimful.integrations.imaginary_card import ImaginaryCard

MARKER, FIXTURE = "limit_gpu_memory", "imaginary_gpu"
_CARD = pytest.StashKey["ImaginaryCard"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(FIXTURE, "the card of tests that name none", default="a100-40gb")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f'{MARKER}(limit, gpu="a100-40gb"): fail the test if it takes more on that card'
    )


@pytest.fixture(autouse=True)
def _on_an_imaginary_gpu(request: pytest.FixtureRequest) -> None:
    """Before all other fixtures of a test, which may use its card."""
    if request.node.get_closest_marker(MARKER) or FIXTURE in request.fixturenames:
        request.getfixturevalue(FIXTURE)


@pytest.fixture
def imaginary_gpu(request: pytest.FixtureRequest) -> Iterator[ImaginaryCard]:
    """An imaginary CUDA card: the test's CUDA tensors have shapes and no data, and memory is that
    of the card. Its name is the parameter (indirect), else that of `limit_gpu_memory`, else the ini
    option `imaginary_gpu`."""
    from brimful.errors import BrimfulError
    from brimful.units import parse_bytes

    def limit_gpu_memory(limit: str, *, gpu: str | None = None) -> tuple[int, str | None]:
        return parse_bytes(str(limit)), gpu

    marker, problem = request.node.get_closest_marker(MARKER), ""
    try:
        from brimful.integrations.imaginary_card import ImaginaryCard

        limit, gpu = limit_gpu_memory(*marker.args, **marker.kwargs) if marker else (None, None)
        name = getattr(request, "param", None) or gpu or request.config.getini(FIXTURE)
        card = request.node.stash[_CARD] = ImaginaryCard(str(name), limit)
    except ModuleNotFoundError as error:
        problem = f"{FIXTURE} needs {error.name}, which is not installed here."
    except TypeError as error:
        call = f"{MARKER}(){str(error).partition('()')[2]}"
        problem = f'{call}: write @pytest.mark.{MARKER}("20 GiB", gpu="a100-40gb").'
    except BrimfulError as error:
        problem = "\n".join(error.sentences())
    if problem:
        pytest.fail(problem, pytrace=False)
    yield card
    del request.node.stash[_CARD]
    card.leave()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test that fails says where the memory of its card went."""
    card = item.stash.get(_CARD, None)
    try:
        result = yield
        if card is not None and (problem := card.too_much()):
            pytest.fail(problem, pytrace=False)
        return result
    except (Exception, pytest.fail.Exception):
        if card is not None:
            item.add_report_section("call", "GPU memory", card.where())
        raise
