import os
import signal
import threading

import pytest

from brimful_train.engine import Stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_the_program_goes_on(number):
    stop = Stop()
    with stop.noticing():
        assert stop.signal is None
        os.kill(os.getpid(), number)
        assert stop.signal == number


def test_a_second_interrupt_ends_at_once_and_a_repeated_termination_changes_nothing():
    """Clusters repeat a termination."""
    stop = Stop()
    with stop.noticing():
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGTERM


def test_the_handlers_that_were_there_are_put_back_also_after_an_error():
    handled = []
    before = signal.signal(signal.SIGTERM, lambda *_: handled.append("mine"))
    try:
        with pytest.raises(ValueError), Stop().noticing():
            raise ValueError
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        os.kill(os.getpid(), signal.SIGTERM)
        assert handled == ["mine"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_a_thread_nothing_is_caught():
    caught = []

    def work():
        with Stop().noticing():
            caught.append(signal.getsignal(signal.SIGTERM) is not before)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert caught == [False] and signal.getsignal(signal.SIGTERM) is before
