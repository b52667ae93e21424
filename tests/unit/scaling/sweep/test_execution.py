"""The runs of a study are logged one by one, and the study is kept after an interruption."""

import errno
import json
import os
import signal
from contextlib import nullcontext

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.analysis.study import read_study
from samestep.scaling.sweep.execution import Frame, collect_study, finish, new_folder
from samestep.scaling.sweep.plan import Request, plan
from samestep.scaling.sweep.trial import Outcome


class Measured:
    """Executes one run."""

    def run(self, trials, begin):
        trial = trials[0]
        begin(trial.in_words())
        trial.clock.mkdir(parents=True)
        for rank in range(trial.workers):
            header = {"format": 1, "rank": rank, "size": trial.workers, "kind": "native", "host": "a"}
            step = {"step": 0, "at": 1.0, "seconds": 0.1, "samples": 4, "forward": 0.1}
            (trial.clock / f"rank-{rank}.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(step)}\n")
        yield Outcome(trial=trial)


class Interrupted(Measured):
    """Executes one run, and then receives the signal `number`."""

    def __init__(self, number):
        self._number = number

    def run(self, trials, begin):
        yield from super().run(trials, begin)
        os.kill(os.getpid(), self._number)
        raise AssertionError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_study_is_kept(tmp_path, capsys, number):
    request = Request(target="t.py", workers=(1, 2), steps=1, warm_up=0, repeats=2, folder=tmp_path / "s")
    trials = plan(request)
    request.folder.mkdir()
    _, code = finish(Frame(request=request, places=2), trials, Interrupted(number))

    assert code == 130
    study = read_study(tmp_path / "s")
    assert [point.workers for point in study.points] == [trials[0].workers]
    assert "interrupted" in [note.code for note in study.notes]
    assert f"1 of 4: {trials[0].in_words()}" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_study_that_is_interrupted_again_while_it_is_written_is_kept(tmp_path, monkeypatch):
    def interrupted(*arguments, **named):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        return collect_study(*arguments, **named)

    monkeypatch.setattr("samestep.scaling.sweep.execution.collect_study", interrupted)
    request = Request(target="t.py", workers=(1, 2), steps=1, warm_up=0, repeats=2, folder=tmp_path / "s")
    request.folder.mkdir()
    _, code = finish(Frame(request=request, places=2), plan(request), Interrupted(signal.SIGINT))

    assert code == 130
    assert len(read_study(tmp_path / "s").points) == 1


class Begun:
    """Is interrupted during its first run."""

    def run(self, trials, begin):
        trials[0].clock.mkdir(parents=True)
        trials[0].log.write_text("epoch 1")
        os.kill(os.getpid(), signal.SIGINT)
        yield from ()


@pytest.mark.parametrize("continues", [False, True])
def test_a_study_without_an_ended_run_is_removed_unless_its_runs_continue(tmp_path, continues):
    request = Request(target="t.py", workers=(1,), steps=1, warm_up=0, repeats=1, folder=tmp_path / "a" / "s")
    frame, trials = Frame(request=request, places=2), plan(request)
    with nullcontext() if continues else pytest.raises(KeyboardInterrupt), new_folder(request.folder):
        assert finish(frame, trials, Begun(), continues=continues)[1] == 130

    assert trials[0].log.exists() == (tmp_path / "a").exists() == continues


class Timed:
    """Executes runs of known durations; the second fails, and is not repeated."""

    def run(self, trials, begin):
        for number in (0, 1, 3):
            begin(trials[number].in_words())
            error = "none" if number == 1 else ""
            yield Outcome(trial=trials[number], samples_per_second=1234.5, seconds=60.0 + number, error=error)


def test_each_run_is_logged_with_its_result_and_the_remaining_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("samestep.scaling.sweep.execution.collect_study", lambda *_, **__: None)
    monkeypatch.setattr("samestep.scaling.sweep.execution._store", lambda *_: "page")
    request = Request(target="t.py", workers=(1, 2), steps=1, warm_up=0, repeats=2, folder=tmp_path)
    trials = plan(request)
    finish(Frame(request=request, places=2), trials, Timed())

    names = [trial.in_words() for trial in trials]
    expected = [
        ("1 of 4", names[0]),
        (names[0], "1,234 samples/s", "1 min 0 s", "3 runs", "3 min 0 s"),
        ("2 of 4", names[1]),
        (names[1], "none."),
        ("3 of 4", names[3]),
        (names[3], "1,234 samples/s", "1 min 3 s"),
    ]
    lines = capsys.readouterr().err.splitlines()[1:-1]
    assert len(lines) == len(expected)
    assert all(part in line for line, parts in zip(lines, expected, strict=True) for part in parts)


def test_a_study_continues_if_sighup_is_ignored(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    request = Request(target="t.py", workers=(1,), steps=1, warm_up=0, repeats=1, folder=tmp_path / "s")
    request.folder.mkdir()
    try:
        with pytest.raises(AssertionError):  # the runner came to its end
            finish(Frame(request=request, places=2), plan(request), Interrupted(signal.SIGHUP))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_study_is_written_after_its_terminal_is_gone(tmp_path):
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

    monkeypatch.setattr("samestep.scaling.analysis.study.write_json", full)
    request = Request(target="t.py", workers=(1, 2), steps=1, warm_up=0, repeats=1, folder=tmp_path / "s")
    request.folder.mkdir()
    study, code = finish(Frame(request=request, places=2), plan(request), Measured())

    assert code == 2
    assert len(study.points) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"{tmp_path / 's' / 'study.json'}: No space left on device" in last


def test_the_folder_of_another_study_is_refused(tmp_path):
    (tmp_path / "study.json").write_text("{}")

    with pytest.raises(UsageError, match=r"--out .*study\.json"), new_folder(tmp_path):
        pass
