from __future__ import annotations

import pytest
from cyclopts import App

from brimful.errors import BrimfulError, DoesNotFit, Terminated, UsageError
from brimful.recipes import ending


def app_that(ends_with: BaseException | int) -> App:
    app = App(name="recipe")

    @app.default
    def train(*, seed: int = 0) -> int:
        if isinstance(ends_with, BaseException):
            raise ends_with
        return ends_with

    return app


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (0, 0),
        (2, 2),
        (UsageError("problem"), 2),
        (DoesNotFit("problem"), 3),
        (Terminated(), 143),
        (BrimfulError("problem"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_ending_has_its_exit_code(what: BaseException | int, code: int):
    assert ending.run(app_that(what), []) == code


def test_the_first_rank_tells_all_in_the_words_of_the_command_line(capsys: pytest.CaptureFixture[str]):
    error = UsageError("config.batch.micro_batch: 9 is more than 5.", "It cannot be filled.", "Set config.optimizer.lr.")
    ending.run(app_that(error), [])
    assert capsys.readouterr().err.splitlines() == ["--batch-size: 9 is more than 5.", "It cannot be filled.", "Set --lr."]


def test_other_ranks_say_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "2")
    assert ending.run(app_that(UsageError("What was seen.", "What it means.", "What to do.")), []) == 2
    assert capsys.readouterr().err == "rank 2: What was seen.\n"


def test_a_name_of_config_that_has_no_flag_stays(capsys: pytest.CaptureFixture[str]):
    assert ending.in_flags("config.optimizer.beta1 = 2 and config.data.prefetch") == (
        "config.optimizer.beta1 = 2 and config.data.prefetch"
    )


def test_an_unknown_option_is_named_without_a_traceback(capsys: pytest.CaptureFixture[str]):
    assert ending.run(app_that(0), ["--sed", "1"]) == 2
    told = capsys.readouterr().err
    assert "--sed" in told and "Traceback" not in told


def test_what_nobody_foresaw_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        ending.run(app_that(ZeroDivisionError()), [])
