import pytest

from brimful import errors


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (errors.BrimfulError("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.DoesNotFit("x"), 3),
        (errors.NoSuchDevice("a1000"), 4),
        (errors.CommandFailed("x"), 5),
        (errors.ProbeNotLoaded(), 5),
        (errors.PlanMismatch("x"), 6),
        (errors.Interrupted(), 130),
        (errors.Terminated(), 143),
    ],
)
def test_each_error_carries_the_exit_code_of_its_kind(error, exit_code):
    assert error.exit_code == exit_code


def test_an_unknown_card_is_answered_with_the_nearest_names_and_with_none_invented():
    error = errors.NoSuchDevice("a100-40", ["a100-40gb", "a100-80gb", "t4", "rtx3090"])
    assert error.nearest[0] == "a100-40gb"
    assert "a100-40gb" in error.suggestion and "brimful gpus" in error.suggestion
    assert errors.nearest("zzzzqqqq", ["a100-40gb", "t4"]) == ()
    assert errors.nearest("RTX 3090Ti", ["rtx3090", "rtx3090-ti", "t4"])[0] in {
        "rtx3090",
        "rtx3090-ti",
    }


def test_an_error_has_sentences_without_the_empty_ones_and_a_full_disk_says_what_is_kept():
    assert errors.UsageError("Saw it.", suggestion="Do that.").sentences() == (
        "Saw it.",
        "Do that.",
    )
    assert "3 trials" in " ".join(
        errors.DiskFull("/x/record.jsonl", "3 trials, up to line 4").sentences()
    )
