"""`brimful gpus`: its options."""

from pathlib import Path

from brimful.cli import views
from brimful.cli.options import Json


def gpus(*, prices: Path | None = None, json: Json = False) -> int:
    """List the GPUs that brimful knows.

    With where each number comes from.

    Parameters
    ----------
    prices
        A file of your own prices (TOML: l4 = 0.71, in US dollars an hour), kept for later
        predictions.
    json
        One JSON object on standard output, with the source of each number.
    """
    return views.show_gpus(json, prices)
