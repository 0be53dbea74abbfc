"""Sentences and sections of a check: what they name as grown, and what not."""

from dataclasses import replace

from brimful.show.check_sections import check_sections, check_sentence
from brimful.show.section import Sentences
from brimful.values import Check, CheckedJob, Held, Judged

MIB = 1 << 20
CACHE = Held(6 * MIB, "cache", (), "")
LAYER = Held(MIB, "activations", ("net.2",), "train.py:8 in main: y = net(x)")
STATE = Held(-9 * MIB, "optimizer_state", ("net.2",), "train.py:9 in main: opt.step()")


def job(*grown: Held, code: str = "peak_allocated_bytes", now: float = 11 * MIB) -> CheckedJob:
    """One whose limit was passed from 10 MiB, or 10 s."""
    before = 10.0 if code == "step_s" else 10 * MIB
    return CheckedJob("net", "", "l4", 3, (Judged(code, now, before, "+2 %", True),), grown)


def sentence(checked: CheckedJob) -> str:
    return check_sentence(Check((checked,), "brimful.toml", "brimful.lock.json", False))


def test_the_sentence_names_what_grew_of_the_peak_that_passed_its_limit():
    assert sentence(job(CACHE, LAYER)).endswith(
        "+2 %. +1.00 MiB: activations of net.2, train.py:8."
    )
    assert "cache" in sentence(job(CACHE, LAYER, code="peak_device_bytes", now=17 * MIB))
    assert "MiB" not in sentence(job(CACHE, LAYER, code="step_s", now=11.0))


def test_the_sentence_has_what_shrank_where_more_grew_than_the_peak_did():
    more = replace(LAYER, bytes=10 * MIB)
    grew = "+10.0 MiB: activations of net.2, train.py:8"
    assert sentence(job(more, STATE)).endswith(
        f"{grew}. −9.00 MiB: optimizer state of net.2, train.py:9."
    )
    assert sentence(job(more, STATE, now=20 * MIB)).endswith(f"{grew}.")


def test_what_holds_more_and_what_holds_less_are_lists_of_their_own():
    sections = check_sections(Check((job(LAYER, STATE),), "", "", False))
    titles = [section.title for section in sections if isinstance(section, Sentences)]
    assert titles == ["What holds more at the peak, net", "What holds less there, net"]
    [only] = [s for s in check_sections(Check((job(LAYER),), "", "", False)) if s.title in titles]
    assert only.title == titles[0]


def test_each_sentence_after_the_first_begins_with_a_capital():
    slow = Judged("step_s", 0.2, 0.1, "+2 %", True)
    both = replace(job(LAYER), judged=(*job().judged, slow), failed=("it does not fit",))
    said = sentence(both)
    assert "net: it does not fit. Allocated peak +10 %" in said
    assert "+2 %. Time of a step +100 %" in said
    below = check_sections(Check((replace(both, notes=("the peak moved",)),), "", "", False))
    assert [s.sentences for s in below if isinstance(s, Sentences) and s.title == "net, l4"] == [
        ("It does not fit", "The peak moved")
    ]
