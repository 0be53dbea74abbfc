"""The command line: parse, call a verb, show. `main` is the entry point; importing this package is
cheap.
"""


def main() -> None:
    """Runs the command line with sys.argv and exits with the code of `brimful.errors`."""
    import io
    import os
    import sys

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # a service may have it closed: what is said goes nowhere
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    try:
        from brimful.cli.app import run
    except KeyboardInterrupt:  # nothing has begun
        sys.exit(130)

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a terminal that has no "×" or "–" is no reason to fail
    sys.exit(run(sys.argv[1:]))
