"""The outcomes of runs in jobs are found by polling their folders and Slurm."""

import json

import pytest

from samestep.base.errors import Error
from samestep.scaling.sweep.slurm_runs import Queue, SubmittedJob
from samestep.scaling.sweep.trial import Trial
from samestep.submit.follow import JobStatus
from samestep.submit.slurm import ENDS

RUNS = JobStatus(words="runs on node0")
WELL = JobStatus(words="has ended well", exit_code=0)
FAILED = JobStatus(words="has failed, exit code 1", exit_code=1)
LATE = JobStatus(words=ENDS["TIMEOUT"], exit_code=1, cut_off=True)


class Followed:
    """A job with a list of states; a function in the list is called before the next state."""

    def __init__(self, *states):
        self.states = list(states)

    def status(self):
        while callable(self.states[0]):
            self.states.pop(0)()
        seen = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(seen, Error):
            raise seen
        return seen


@pytest.fixture
def trial(tmp_path):
    """Return a function that creates a run with its folders."""

    def make(number, workers=1, variant=""):
        made = Trial(
            number=number,
            workers=workers,
            modes=("strong",),
            variant=variant,
            command=("run",),
            folder=tmp_path / f"{number}",
        )
        made.clock.mkdir(parents=True)
        made.scratch.mkdir()
        return made

    return make


def end(trial, code=0, log=""):
    """Write the files of a run that has ended."""
    for rank in range(trial.workers):
        header = {"format": 1, "rank": rank, "size": trial.workers, "kind": "native", "host": "node0"}
        step = {"step": 5, "at": 1.0, "seconds": 1.0, "samples": 4, "forward": 1.0}
        lines = [header, step, {"ended": "steps"}]
        (trial.clock / f"rank-{rank}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    trial.log.write_text(log)
    (trial.folder / "exit-code").write_text(f"{code}\n")


def followed(jobs, tmp_path):
    """Wait for jobs, given as states and runs; return the outcomes and the reports."""
    reported, clock = [], iter(range(10_000))
    of_job = {str(number): Followed(*states) for number, (states, _) in enumerate(jobs, 11)}
    queue = Queue(
        [
            SubmittedJob(number=str(number), log=tmp_path / f"{number}.log", trials=tuple(trials))
            for number, (_, trials) in enumerate(jobs, 11)
        ],
        report=reported.append,
        followed=of_job.__getitem__,
        pause=lambda seconds: None,
        now=lambda: float(next(clock)),
    )
    outcomes = {outcome.trial.number: outcome for outcome in queue.run((), lambda words: None)}
    return outcomes, reported


def test_outcomes_are_yielded_as_runs_end_whatever_the_state_of_the_job(trial, tmp_path):
    one, two, other = trial(0), trial(1), trial(2, workers=2)
    states = [RUNS, lambda: end(two), RUNS, lambda: end(one), RUNS]
    jobs = [(states, [one, two]), ([RUNS, lambda: end(other), RUNS], [other])]
    outcomes, reported = followed(jobs, tmp_path)

    assert list(outcomes) == [1, 2, 0]
    assert not any(outcome.error for outcome in outcomes.values())
    assert reported == ["job 11 (1 worker) runs on node0.", "job 12 (2 workers) runs on node0."]
    assert not one.scratch.exists()


def test_a_failed_run_has_its_reason_and_the_others_of_its_job_count(trial, tmp_path):
    bad, good = trial(0), trial(1)
    end(bad, 1, log="samestep: error: there is no such thing\n")
    end(good)
    outcomes, reported = followed([([RUNS, FAILED], [bad, good])], tmp_path)

    assert outcomes[0].error == "there is no such thing"
    assert outcomes[0].exit_code == 1
    assert not outcomes[1].error
    assert reported[-1].startswith("job 11 (1 worker) ")


def test_the_reason_of_slurm_is_that_of_the_remaining_runs(trial, tmp_path):
    done, cut, never = trial(0), trial(1, variant="a"), trial(2, variant="b")
    repeat = trial(3, variant="b")
    end(done)
    end(cut, 143, log="srun: error: node0: task 0: Terminated\n")
    outcomes, _ = followed([([RUNS, LATE], [done, cut, never, repeat])], tmp_path)

    assert sorted(outcomes) == [0, 1, 2]  # one outcome for two repeats
    assert not outcomes[0].error
    why = outcomes[1].error
    assert why.startswith("job 11 ")
    assert "--time" in why
    assert "--requeue" not in why
    assert outcomes[2].error == f"{why}; its log: {tmp_path / '11.log'}"
    assert outcomes[2].exit_code is None
    assert not any(one.scratch.exists() for one in (done, cut, never, repeat))


def test_a_late_file_is_waited_for(trial, tmp_path):
    late = trial(0)
    polls = iter(range(3))

    queue = Queue(
        [SubmittedJob(number="11", log=tmp_path / "log", trials=(late,))],
        report=lambda words: None,
        followed=lambda number: Followed(WELL),
        pause=lambda seconds: end(late) if next(polls) == 1 else None,
        now=lambda: 0.0,
    )
    (outcome,) = queue.run((), lambda words: None)

    assert not outcome.error


@pytest.mark.parametrize("ended", [RUNS, WELL, LATE])
def test_a_file_of_another_node_that_is_later_than_the_exit_code_is_waited_for(trial, tmp_path, ended):
    late = trial(0, workers=2)
    end(late)
    behind = late.clock / "rank-1.jsonl"
    text = behind.read_text()
    behind.write_text(text.partition("\n")[0])  # its first part
    polls = iter(range(4))

    queue = Queue(
        [SubmittedJob(number="11", log=tmp_path / "log", trials=(late,))],
        report=lambda words: None,
        followed=lambda number: Followed(ended),
        pause=lambda seconds: behind.write_text(text) if next(polls) == 2 else None,
        now=lambda: 0.0,
    )
    (outcome,) = queue.run((), lambda words: None)

    assert not outcome.error


def test_a_missing_file_of_a_worker_is_an_error_in_the_end(trial, tmp_path):
    lacking, cut = trial(0, workers=2), trial(1, workers=2, variant="b")
    end(lacking)
    (lacking.clock / "rank-1.jsonl").unlink()
    outcomes, _ = followed([([RUNS, LATE], [lacking, cut])], tmp_path)

    assert "holds the files of ranks 0" in outcomes[0].error
    assert outcomes[1].exit_code is None


def test_outcomes_of_a_job_without_a_record_are_found_in_its_files(trial, tmp_path):
    done, never = trial(0), trial(1)
    end(done)
    forgotten = Error("Slurm no longer knows job 11, and its accounting does not say how it ended.")
    log = tmp_path / "11.log"
    log.write_text("slurmstepd: error: *** JOB 11 ON node0 CANCELLED DUE TO TIME LIMIT ***\n\n")
    outcomes, _ = followed([([forgotten], [done, never])], tmp_path)

    assert not outcomes[0].error
    assert "Slurm no longer knows job 11" in outcomes[1].error
    assert outcomes[1].error.endswith(
        f"its log {log} ends: slurmstepd: error: *** JOB 11 ON node0 CANCELLED DUE TO TIME LIMIT ***"
    )
