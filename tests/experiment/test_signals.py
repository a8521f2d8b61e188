"""Signals: waited for, at once, twice, in threads and in workers."""

import os
import signal
import threading

import pytest

from pml_ext.errors import StoppedError
from pml_ext.experiment import signals


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
    for _ in range(1000):  # a signal is handled between two lines
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_waited_for_or_ends_at_once(number, capfd):
    before = signal.getsignal(number)
    with signals.listening():
        with signals.waiting():
            assert signals.received() is None
            send(number)
            assert signals.received() == number
            with pytest.raises(StoppedError, match=f"^stopped by {number.name} after epoch 3$") as caught:
                signals.check("after epoch 3")
            assert caught.value.exit_code == 128 + number
            with pytest.raises(StoppedError), signals.at_once():
                pytest.fail("a noted signal ends what may end at once")
        assert "a checkpoint written; once more ends at once" in capfd.readouterr().err
    assert signal.getsignal(number) is before
    with signals.listening(), pytest.raises(StoppedError, match=f"^stopped by {number.name}$"):
        send(number)
    assert signals.received() is None


def test_a_second_signal_ends_at_once_and_a_third_is_not_caught():
    with signals.listening(), signals.waiting():
        send()
        with pytest.raises(StoppedError, match="at once; what the last checkpoint does not have is lost"):
            send(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_nohup_ignores_stays_ignored(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.listening():
            send(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_thread_changes_nothing():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with signals.listening():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
