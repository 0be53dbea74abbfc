"""Notebooks (`%load_ext brimful`): answers show themselves as pages."""

import sys
from typing import Any

from brimful.show.console import render_text
from brimful.show.sections import alone
from brimful.values import Audit, Plan, Prediction, Record


def load_ipython_extension(shell: Any) -> None:
    """What IPython calls at `%load_ext brimful`. `shell`: an InteractiveShell."""
    formatters = shell.display_formatter.formatters
    for kind in (Record, Prediction, Plan, Audit):
        formatters["text/html"].for_type(kind, _frame)
        formatters["text/plain"].for_type(
            kind, lambda value, printer, cycle: printer.text(render_text(_record(value)).rstrip())
        )


def _frame(value: Record | Prediction | Plan | Audit) -> str | None:
    """None, at which the notebook shows the text, where pages cannot be made here."""
    try:
        from brimful.show.html import render_frame
    except ImportError as error:
        print(f"The page is left out: it needs {error.name or error}", file=sys.stderr)
        return None
    return render_frame(_record(value))


def _record(value: Record | Prediction | Plan | Audit) -> Record:
    return value if isinstance(value, Record) else alone(value)
