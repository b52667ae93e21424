"""A study as it is made: told run by run, kept whoever ends it, and not left behind empty."""

import errno
import json
import os
import signal
from contextlib import nullcontext

import pytest

from samestep.base.errors import UsageError
from samestep.cli.scale_study import finish, new_folder
from samestep.scaling.files import read_study
from samestep.trials.collect import Frame, collect_study
from samestep.trials.plan import Request, plan
from samestep.trials.trial import Outcome


class Measured:
    """Makes one run."""

    def run(self, trials, told):
        trial = trials[0]
        told(trial.in_words())
        trial.clock.mkdir(parents=True)
        for rank in range(trial.workers):
            header = {"format": 1, "rank": rank, "size": trial.workers, "kind": "native", "host": "a"}
            step = {"step": 0, "at": 1.0, "seconds": 0.1, "samples": 4, "forward": 0.1}
            (trial.clock / f"rank-{rank}.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(step)}\n")
        yield Outcome(trial=trial)


class Interrupted(Measured):
    """Makes one run, and is then ended as by `number`."""

    def __init__(self, number):
        self._number = number

    def run(self, trials, told):
        yield from super().run(trials, told)
        os.kill(os.getpid(), self._number)
        raise AssertionError


@pytest.fixture
def heard():
    """Ctrl-C is heard here, whoever runs the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_ends_a_study_keeps_what_was_measured(tmp_path, capsys, number):
    request = Request(target="t.py", workers=(1, 2), steps=1, warm_up=0, repeats=2, folder=tmp_path / "s")
    trials = plan(request)
    request.folder.mkdir()
    _, code = finish(Frame(request=request, places=2), trials, Interrupted(number))

    assert code == 130
    study = read_study(tmp_path / "s")
    assert [point.workers for point in study.points] == [trials[0].workers]
    assert "interrupted" in [finding.code for finding in study.findings]
    assert f"run 1 of 4: {trials[0].in_words()}" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("heard")
def test_who_ends_a_study_twice_keeps_it_too(tmp_path, monkeypatch):
    def interrupted(*arguments, **named):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        return collect_study(*arguments, **named)

    monkeypatch.setattr("samestep.cli.scale_study.collect_study", interrupted)
    request = Request(target="t.py", workers=(1, 2), steps=1, warm_up=0, repeats=2, folder=tmp_path / "s")
    request.folder.mkdir()
    _, code = finish(Frame(request=request, places=2), plan(request), Interrupted(signal.SIGINT))

    assert code == 130
    assert len(read_study(tmp_path / "s").points) == 1


class Begun:
    """Is ended, as by Ctrl-C, while its first run goes."""

    def run(self, trials, told):
        trials[0].clock.mkdir(parents=True)
        trials[0].log.write_text("epoch 1")
        os.kill(os.getpid(), signal.SIGINT)
        yield from ()


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("goes_on", [False, True])
def test_of_a_study_in_which_no_run_ended_nothing_is_left_unless_its_runs_go_on(tmp_path, capsys, goes_on):
    request = Request(target="t.py", workers=(1,), steps=1, warm_up=0, repeats=1, folder=tmp_path / "a" / "s")
    frame, trials = Frame(request=request, places=2), plan(request)
    with nullcontext() if goes_on else pytest.raises(KeyboardInterrupt), new_folder(request.folder):
        assert finish(frame, trials, Begun(), goes_on=goes_on)[1] == 130

    assert trials[0].log.exists() == (tmp_path / "a").exists() == goes_on
    assert ("nothing is kept" in capsys.readouterr().err) == (not goes_on)


class Timed:
    """Says how long runs took; the second gives nothing, and is not repeated."""

    def run(self, trials, told):
        for number in (0, 1, 3):
            told(trials[number].in_words())
            error = "none" if number == 1 else ""
            yield Outcome(trial=trials[number], samples_per_second=1234.5, seconds=60.0 + number, error=error)


def test_each_run_is_told_with_its_result_and_what_is_left(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("samestep.cli.scale_study.collect_study", lambda *_, **__: None)
    monkeypatch.setattr("samestep.cli.scale_study._kept", lambda *_: "page")
    request = Request(target="t.py", workers=(1, 2), steps=1, warm_up=0, repeats=2, folder=tmp_path)
    trials = plan(request)
    finish(Frame(request=request, places=2), trials, Timed())

    names = [trial.in_words() for trial in trials]
    assert capsys.readouterr().err.splitlines()[1:-1] == [
        f"samestep: run 1 of 4: {names[0]}",
        f"samestep: {names[0]}: 1,234 samples/s, in 1 min 0 s; 3 runs to go, about 3 min 0 s",
        f"samestep: run 2 of 4: {names[1]}",
        f"samestep: {names[1]}: none.",
        f"samestep: run 3 of 4: {names[3]}",
        f"samestep: {names[3]}: 1,234 samples/s, in 1 min 3 s",
    ]


def test_a_study_goes_on_where_its_terminal_is_not_listened_to(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    request = Request(target="t.py", workers=(1,), steps=1, warm_up=0, repeats=1, folder=tmp_path / "s")
    request.folder.mkdir()
    try:
        with pytest.raises(AssertionError):  # it came to its end
            finish(Frame(request=request, places=2), plan(request), Interrupted(signal.SIGHUP))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_gone_does_not_take_the_study_along(tmp_path):
    def gone(_number, _frame):
        raise BrokenPipeError

    before = signal.signal(signal.SIGUSR1, gone)
    request = Request(target="t.py", workers=(1, 2), steps=1, warm_up=0, repeats=2, folder=tmp_path / "s")
    request.folder.mkdir()
    try:
        with pytest.raises(BrokenPipeError):
            finish(Frame(request=request, places=2), plan(request), Interrupted(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert len(read_study(tmp_path / "s").points) == 1


def test_a_study_that_cannot_be_written_is_returned_to_be_printed(tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("samestep.scaling.files.write_json", full)
    request = Request(target="t.py", workers=(1, 2), steps=1, warm_up=0, repeats=1, folder=tmp_path / "s")
    request.folder.mkdir()
    study, code = finish(Frame(request=request, places=2), plan(request), Measured())

    assert code == 2
    assert len(study.points) == 1
    said = (
        f"cannot write {tmp_path / 's' / 'study.json'}: No space left on device. The study is only printed."
    )
    assert capsys.readouterr().err.splitlines()[-1] == f"samestep: error: {said}"


def test_another_studys_folder_is_left_alone(tmp_path):
    (tmp_path / "study.json").write_text("{}")

    with pytest.raises(UsageError, match=r"there is study\.json in it already"), new_folder(tmp_path):
        pass
