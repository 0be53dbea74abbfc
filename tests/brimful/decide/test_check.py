"""The limits of a job, what passes one, and what grew."""

from dataclasses import replace

import pytest

from brimful.decide.check import grown, held_of, judged, limits_of, to_keep
from brimful.errors import UsageError
from brimful.values import Baseline, CheckedJob, Diagnostic, Held, Job, Verdict
from tests.brimful.show.product import predict_fits

MLP = "train.py:88 in forward: x = self.mlp(x)"
STEP = "train.py:97 in main: optimizer.step()"
PREDICTION = predict_fits().prediction
HELD = (
    Held(1200, "activations", ("blocks.0.mlp", "blocks.1.mlp", "blocks.2.mlp"), MLP),
    Held(300, "optimizer_state", ("head",), STEP),
    Held(50, "cache", (), ""),
)
FIGURES = {"peak_device_bytes": 1550, "step_s": 0.1}
BEFORE = Baseline("0.1.0", "2.9.1", "a100-40gb", 64, FIGURES, "train", HELD)
CHECKED = CheckedJob("gpt", "", "l4")


def after(*held: Held, **figures: float) -> Baseline:
    return replace(BEFORE, held=held or HELD, figures=FIGURES | figures)


def judge(now: Baseline, before: Baseline | None = BEFORE, renews: bool = False, **job):
    asked = Job("train", gpu="a100-40gb", **job)
    return judged(asked, PREDICTION, (), before, now, CheckedJob("gpt", "", ""), renews)


def passed(*given, **job) -> list:
    """The figures whose limits were passed."""
    checked = judge(*given, **job)
    assert (checked.exit_code == 3) is any(row.passed for row in checked.judged)
    return [row.code for row in checked.judged if row.passed]


@pytest.mark.parametrize(
    ("limits", "figure", "most", "more"),
    [
        ({"peak_device": "+2 %"}, "peak_device_bytes", 1581, 1582),
        ({"peak_device": "+2%"}, "peak_device_bytes", 1581, 1582),
        ({"peak_device": "+10.5 %"}, "peak_device_bytes", 1712, 1713),
        ({"peak_device": "+100 bytes"}, "peak_device_bytes", 1650, 1651),
        ({"peak_device": "1600"}, "peak_device_bytes", 1600, 1601),
        ({"step": "+10 %"}, "step_s", 0.1099, 0.1101),
        ({"step": "+10 ms"}, "step_s", 0.1099, 0.1101),
        ({"step": "110 ms"}, "step_s", 0.1099, 0.1101),
        ({}, "peak_device_bytes", 1581, 1582),  # 2 % where a job says nothing
    ],
)
def test_a_figure_passes_its_limit_by_one_byte_more_or_a_tenth_of_a_millisecond(
    limits, figure, most, more
):
    assert passed(after(**{figure: most}), **limits) == []
    assert passed(after(**{figure: more}), **limits) == [figure]


def test_a_step_has_no_limit_where_a_job_says_nothing():
    assert passed(after(step_s=9.0)) == []


@pytest.mark.parametrize(
    ("job", "problem", "suggestion"),
    [
        (Job("train", gpu="l4", peak_device="2 %"), "'2 %' is no limit of peak_device", "+2 %"),
        (Job("train", gpu="l4", peak_device="+much"), "'.much' is no limit of peak", "+2 %"),
        (Job("train", gpu="l4", peak_device="+nan %"), r"'\+nan %' is no limit of peak", "+2 %"),
        (Job("train", gpu="l4", peak_device="+inf %"), r"'\+inf %' is no limit of peak", "+2 %"),
        (Job("train", gpu="l4", step="+1e999 %"), r"'\+1e999 %' is no limit of step", "+2 %"),
        (Job("train", gpu="l4", step="+2 GiB"), r"'\+2 GiB' is no limit of step", "+2 %"),
        (Job("train"), "names no card", ""),
        (Job("train", gpu="l4", gpu_memory="20GiB"), "names two cards", ""),
        (
            Job("train", gpu="l4", no_findings=("hiden-cap",)),
            "hiden-cap is not a finding",
            "did you mean hidden-cap?",
        ),
    ],
)
def test_a_job_has_limits_one_card_and_findings_that_there_are(job, problem, suggestion):
    with pytest.raises(UsageError, match="brimful.toml, job gpt.*" + problem) as error:
        limits_of(job, "brimful.toml, job gpt")
    assert suggestion in (error.value.suggestion or "")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"torch": "2.8.0"}, "of torch 2.8.0, and this is 2.9.1"),
        ({"brimful": "0.0.9"}, "of brimful 0.0.9"),
        ({"gpu": "l4"}, "of card l4"),
    ],
)
def test_growth_beside_a_baseline_of_another_release_or_card_is_said_and_fails_nothing(
    change, named
):
    larger, other = after(peak_device_bytes=3000), replace(BEFORE, **change)
    checked = judge(larger, other)
    assert checked.exit_code == 0 and named in checked.notes[0]
    assert passed(larger, other, peak_device="2000 bytes") != []
    assert judge(larger).notes == ()
    assert passed(larger, replace(BEFORE, torch="2.9.0")) != [], "a patch is no other release"


def test_growth_fails_nothing_where_the_baseline_is_written_anew():
    larger = after(peak_device_bytes=3000)
    assert passed(larger, renews=True) == passed(larger, None) == []
    assert passed(larger, renews=True, peak_device="2000 bytes") != []


@pytest.mark.parametrize(
    ("verdict", "text"), [(Verdict.TIGHT, "only if"), (Verdict.DOES_NOT_FIT, "does not fit")]
)
def test_a_job_that_has_to_fit_and_does_not_fails_with_a_sentence(verdict, text):
    worse, rest = replace(PREDICTION, verdict=verdict), ((), BEFORE, BEFORE, CHECKED, False)
    failed = judged(Job("train", gpu="l4"), worse, *rest)
    assert failed.exit_code == 3 and text in failed.failed[0]
    assert judged(Job("train", gpu="l4", must_fit=False), worse, *rest).exit_code == 0


@pytest.mark.parametrize(
    ("codes", "exit_code", "failed"),
    [
        (("hidden-cap",), 3, ("It is capped. Look for min(). (hidden-cap)",)),
        (("remainder",), 0, ()),
    ],
)
def test_a_finding_fails_the_job_that_forbids_it_alone(codes, exit_code, failed):
    finding = Diagnostic("hidden-cap", "It is capped.", "Memory is that of 2.", "Look for min().")
    job = Job("train", gpu="l4", no_findings=codes)
    result = judged(job, PREDICTION, (finding,), BEFORE, BEFORE, CHECKED, False)
    assert (result.exit_code, result.failed) == (exit_code, failed)


def test_a_figure_that_has_a_limit_and_is_not_predicted_fails_under_its_key():
    checked = judge(replace(BEFORE, figures={"peak_device_bytes": 1550}), step="+10 %")
    assert (checked.exit_code, checked.failed) == (3, ("`step` has a limit and is not predicted",))


def test_what_grew_is_named_by_module_category_and_the_line_as_it_is_numbered_now():
    line = MLP.replace(":88", ":90")
    larger = Held(900, "activations", ("blocks.1.mlp",), line)
    others = Held(800, "activations", ("blocks.0.mlp", "blocks.2.mlp"), line)
    [row] = grown(to_keep(BEFORE), after(larger, others, *HELD[1:]))
    assert row == Held(500, "activations", ("blocks.1.mlp",), line)


@pytest.mark.parametrize("written_anew", ["", " * 2"])
def test_modules_that_differ_in_their_numbers_grow_together_on_a_line_that_was_written_anew_too(
    written_anew,
):
    row = Held(1500, "activations", HELD[0].modules, MLP + written_anew)
    assert grown(BEFORE, after(row, *HELD[1:])) == (replace(row, bytes=300),)


FORWARD = "train.py:8 in main: y = net(x)"
BACKWARD = "train.py:9 in main: loss.backward()"
LAYERS = (
    Held(500, "parameters", ("net.0",), FORWARD),
    Held(1000, "parameters", ("net.3",), FORWARD),
    Held(20, "parameters", ("net.6",), FORWARD),
    Held(4, "parameters", ("net.5",), FORWARD),
    Held(600, "activations", ("net.1", "net.4"), FORWARD),
    Held(8000, "workspaces", ("net.6",), BACKWARD),
)


def shifted(*held: Held) -> tuple[Held, ...]:
    """As after one more module before the second."""
    paths = {f"net.{n}": f"net.{n + (n > 0)}" for n in range(9)}
    return tuple(replace(row, modules=tuple(paths[m] for m in row.modules)) for row in held)


def test_modules_that_an_insertion_renamed_did_not_grow():
    before, [layer, *others] = replace(BEFORE, held=LAYERS), shifted(*LAYERS)
    assert grown(before, after(layer, *others)) == ()
    inserted = Held(250, "parameters", ("net.1",), FORWARD)
    assert grown(before, after(layer, inserted, *others)) == (inserted,)
    larger = replace(layer, bytes=1100)
    assert grown(before, after(larger, *others)) == (replace(layer, bytes=600),)


@pytest.mark.parametrize(("were", "are"), [((6, 7), (8, 9)), ((8, 11), (10, 13))])
def test_of_layers_of_one_size_the_one_before_those_that_were_renamed_is_the_new_one(were, are):
    def layers(*places: int) -> list[Held]:
        return [Held(100, "parameters", (f"net.{place}",), FORWARD) for place in places]

    before = replace(BEFORE, held=tuple(layers(0, 3, *were)))
    assert grown(before, after(*layers(0, 3, 5, *are))) == tuple(layers(5))


def test_of_two_lines_of_one_text_the_one_that_holds_more_is_named():
    larger, smaller = (replace(LAYERS[1], where=FORWARD.replace(":8", n)) for n in (":30", ":40"))
    smaller = replace(smaller, bytes=10)
    assert grown(BEFORE, after(*HELD, larger, smaller)) == (replace(larger, bytes=1010),)


def test_modules_of_a_new_name_have_the_growth_of_all_that_hold_such_at_all_their_numbers():
    wider = [replace(row, bytes=row.bytes * 11 // 10) for row in shifted(*LAYERS)]
    rows = grown(replace(BEFORE, held=LAYERS), after(*wider))
    growth = {"workspaces": 800, "parameters": 152, "activations": 60}
    assert {row.category: row.bytes for row in rows} == growth
    assert all(row.where in (FORWARD, BACKWARD) for row in rows), "the lines as they are now"


def test_what_is_shared_among_other_modules_to_the_rounded_byte_did_not_grow():
    thirds = Held(11, "activations", ("a", "b", "c"), MLP)
    apart = (replace(thirds, bytes=7, modules=("a",)), replace(thirds, bytes=4, modules=("b", "c")))
    assert grown(replace(BEFORE, held=(thirds,)), after(*apart)) == ()


def test_nothing_is_named_where_no_peak_grew_and_what_holds_less_where_one_did():
    [activations, state, cache] = HELD
    more, less = replace(activations, bytes=1500), replace(state, bytes=0)
    assert grown(BEFORE, after(more, less, cache)) == ()
    rows = grown(BEFORE, after(replace(more, bytes=1530), less, cache))
    assert rows == (replace(activations, bytes=330), replace(state, bytes=-300))
    of_cache = grown(BEFORE, after(more, state, replace(cache, bytes=0), Held(0, "cache", (), "")))
    assert of_cache == (replace(activations, bytes=300), replace(cache, bytes=-50))
    assert grown(BEFORE, after(activations, state, replace(cache, bytes=90))) == (
        replace(cache, bytes=40),
    )


def test_what_is_kept_has_no_numbers_of_lines_and_an_order_that_sizes_do_not_change():
    kept = to_keep(BEFORE)
    assert [row.where for row in kept.held if row.where] == [
        "train.py in main: optimizer.step()",
        "train.py in forward: x = self.mlp(x)",
    ]
    moved = after(*(replace(row, where=row.where.replace(":88", ":188")) for row in HELD))
    assert to_keep(moved) == kept
    larger = to_keep(after(replace(HELD[0], bytes=120), *HELD[1:])).held
    assert [row.modules for row in larger] == [row.modules for row in kept.held]


def test_all_that_is_held_adds_up_to_the_device_peak():
    assert sum(row.bytes for row in held_of(PREDICTION.breakdown)) == PREDICTION.peak.device_bytes
    assert held_of(None) == ()
