"""The table of other people's programs, and what the bench makes of what brimful says of them;
nothing is predicted here.
"""

from bench.programs_page import strangers_page

PEAK = {"device_bytes": 2 << 30, "device_interval_bytes": [1900 << 20, 2300 << 20]}


def row(name="yolo detect train", **more):
    return {
        "name": name,
        "package": "ultralytics",
        "gpu": "a100-40gb",
        "batch_size": 16,
        "date": "2026-11-23",
        "predict": {
            "exit_code": 0,
            "seconds": 40.2,
            "peak": PEAK,
            "largest_batch_size": 64,
            "limited_by": "dataset",
            "ignores_batch_size": False,
        },
        "audit": {
            "exit_code": 0,
            "seconds": 9.6,
            "findings": ["too many workers", "another"],
            "effective": {},
        },
        **more,
    }


def test_the_table_shows_the_peak_the_first_finding_and_why_a_program_does_not_run():
    broken = row(
        "trl sft",
        predict={"exit_code": 5, "seconds": 3.0, "error": "a | b\nfailed"},
        audit={"seconds": 1.0, "error": "x"},
    )
    ignoring = row("open_clip_train", predict={**row()["predict"], "ignores_batch_size": True})
    text = strangers_page({"packages": {"torch": "2.15.0"}, "rows": [row(), broken, ignoring]})
    assert "yolo detect train | 16 | 2048 MiB | 64 (dataset) | 2 |" in text
    assert (
        "does not run: a / b failed" in text
        and "no audit: x" in text
        and "the batch size is ignored" in text
    )
    assert "torch 2.15.0" in text
