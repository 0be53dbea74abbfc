"""Parts that test_card.py gives to the runner."""

import sys

from bench.card.bench import Bench


def fails(bench: Bench) -> None:
    bench.keep({"number": 1})
    raise RuntimeError("no such kernel")


def each(bench: Bench) -> None:
    def make(number: int) -> dict[str, int]:
        if number == 1:
            sys.exit("this side failed")
        return {"number": number}

    bench.each([0, 1, 2], 1, make)


def lacks(bench: Bench) -> None:
    import a_package_that_is_not_there  # noqa: F401 # pyright: ignore[reportMissingImports]
