"""The command line: parse, call a verb, show. `main` is the entry point; importing this package is cheap."""

from __future__ import annotations


def main() -> None:
    """Runs the command line with sys.argv and exits with the code of `brimful.errors`."""
    import sys

    from brimful.cli.app import run

    sys.exit(run(sys.argv[1:]))
