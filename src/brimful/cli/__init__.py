"""The command line: parse, call a verb, show. `main` is the entry point; importing this package is
cheap.
"""


def main() -> None:
    """Runs the command line with sys.argv and exits with the code of `brimful.errors`."""
    import io
    import sys

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
