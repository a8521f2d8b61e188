"""Signals: waited for, at once, twice, in threads and in workers."""

import functools
import os
import pkgutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pml_ext.errors import StoppedError
from pml_ext_train.launch import launch
from pml_ext_train.training import signals

from ....overrides import typed


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
    for _ in range(1000):  # a signal is handled between two lines
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_deferred_or_end_at_once(number, capfd):
    before = signal.getsignal(number)
    with signals.listening():
        with signals.deferred():
            assert signals.received() is None
            send(number)
            assert signals.received() == number
            with pytest.raises(StoppedError, match=f"^stopped by {number.name} after epoch 3$") as caught:
                signals.check("after epoch 3")
            assert caught.value.exit_code == 128 + number
            with pytest.raises(StoppedError), signals.at_once():
                pytest.fail("a noted signal ends what may end at once")
        error = capfd.readouterr().err
        assert "stopping after this iteration, with a checkpoint; send it again to stop at once" in error
    assert signal.getsignal(number) is before
    with signals.listening(), pytest.raises(StoppedError, match=f"^stopped by {number.name}$"):
        send(number)
    assert signals.received() is None


def test_a_second_signal_ends_at_once():
    with signals.listening(), signals.deferred():
        send()
        with pytest.raises(StoppedError, match="at once; everything since the last checkpoint is lost"):
            send(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("name", ["TORCHELASTIC_RUN_ID", signals.PASSED_ON])
def test_a_repeated_signal_counts_only_once(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with signals.listening(), signals.deferred():
        send()
        send()
        assert signals.received() == signal.SIGTERM
        monkeypatch.setattr(signals, "_TWICE", 0)
        with pytest.raises(StoppedError, match="at once"):
            send()


class Dropping:
    """An object in whose deletion a signal arrives: Python drops errors there."""

    def __del__(self):
        send()


def test_signals_inside_callbacks_are_not_lost(capfd):
    def work():
        Dropping()
        time.sleep(10)  # the signal ends it

    before = sys.unraisablehook
    with signals.listening(), pytest.raises(StoppedError, match=r"^stopped by SIGTERM$"):
        work()
    assert sys.unraisablehook is before
    assert "Exception ignored" not in capfd.readouterr().err


def test_what_nohup_ignores_stays_ignored(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.listening():
            send(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_thread_changes_no_handlers():
    def handler_inside():
        with signals.listening():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor() as threads:
        assert threads.submit(handler_inside).result() == signal.getsignal(signal.SIGTERM)


def interrupting(function):
    """The function, before which this process gets a SIGTERM, once."""

    send_once = functools.cache(send)

    def interrupted(*arguments, **settings):
        send_once()
        return function(*arguments, **settings)

    return interrupted


TINY = ("schedule.epochs=1", "schedule.milestones=[1]", "sampler.iterations=2", "model.trunk.width=8")
PHASES = {
    "the check of the recipe": "pml_ext_train.recipe.check._check_optimizer",
    "reading last.pt": "torch.load",
    "drawing a figure": "pml_ext_train.report.figures.similarity_distributions",
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_ends_a_run_in_every_phase(tmp_path, monkeypatch, pml_ext_command, phase):
    out = tmp_path / "out"
    line = ["train", "cbml/digits", "--out", str(out), "--device", "cpu", *(f"--set={each}" for each in TINY)]
    if phase == "reading last.pt":
        monkeypatch.setattr("pml_ext_train.results.finish.metrics_after", interrupting(lambda *_: {}))
        assert pml_ext_command(*line).returncode == 128 + signal.SIGTERM
        line.append("--resume")
    monkeypatch.setattr(PHASES[phase], interrupting(pkgutil.resolve_name(PHASES[phase])))
    done = pml_ext_command(*line)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr.splitlines()[-1].startswith("pml-ext: stopped by SIGTERM; ")
    begun = f"resume with the same command and --out {out} --resume" in done.stderr
    assert begun == (phase != "the check of the recipe")
    assert not (out / "report.html").exists()


def test_no_seed_begins_after_a_signal(tmp_path, monkeypatch):
    begun = []
    execute = launch.execute
    monkeypatch.setattr("pml_ext_train.report.figures.similarity_distributions", interrupting(lambda *_: None))
    monkeypatch.setattr(launch, "execute", lambda plan, *more: begun.append(plan.seed) or execute(plan, *more))
    with pytest.raises(StoppedError, match="/out --resume"):
        launch.train("cbml/digits", tmp_path / "out", seeds=3, device="cpu", overrides=typed(TINY))
    assert begun == [0]
