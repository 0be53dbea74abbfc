"""What would help most, in words. For every view alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brimful.show.words import bytes_text, count_text
from brimful.values import Saving, WhatIf


@dataclass(frozen=True)
class SavingRow:
    what: str
    saves: str
    peak: str
    fits: str
    largest: str
    source: str
    how: str


def saving_rows(what_if: WhatIf) -> list[SavingRow]:
    """The changes that save something, the largest saving first."""
    return [_row(saving) for saving in what_if.savings]


def other_texts(what_if: WhatIf) -> list[str]:
    """What was tried and does not help, and what cannot be tried, each as a sentence."""
    return [f"{other.what}: {other.why}" for other in what_if.others]


def what_if_json(what_if: WhatIf) -> dict[str, Any]:
    return {
        "savings": [
            {
                "code": saving.code,
                "what": saving.what,
                "how": saving.how,
                "source": saving.source.value,
                "basis": saving.basis,
                "saved_bytes": saving.saved_bytes,
                "new_peak_bytes": saving.new_peak_bytes,
                "fits": saving.fits,
                "largest_batch_size": saving.largest_batch_size,
            }
            for saving in what_if.savings
        ],
        "others": [{"code": other.code, "what": other.what, "why": other.why} for other in what_if.others],
    }


def _row(saving: Saving) -> SavingRow:
    basis = f" ({saving.basis})" if saving.basis else ""
    return SavingRow(
        what=saving.what,
        saves=bytes_text(saving.saved_bytes),
        peak=bytes_text(saving.new_peak_bytes),
        fits="fits" if saving.fits else "does not fit",
        largest=count_text(saving.largest_batch_size),
        source=saving.source.value,
        how=saving.how + basis,
    )
