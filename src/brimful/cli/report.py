"""`brimful report`: its options."""

from pathlib import Path

from brimful.cli import views
from brimful.cli.options import Json


def report(
    record: str | None = None,
    /,
    *,
    out: Path | None = None,
    format: str = "html",
    home: Path | None = None,
    json: Json = False,
) -> int:
    """Show a record as a page, Markdown or text.

    Parameters
    ----------
    record
        A record's id or folder; the latest if none is given.
    out
        Where to write it; else report.html in the record's folder, and text to standard output.
    format
        html (one self-contained page), md (tables to paste) or text.
    home
        Where records are kept; else BRIMFUL_HOME, else .brimful here.
    json
        One JSON object with the paths of the record and of the page.
    """
    return views.show_report(record, out, format, home, json)
