"""A study's jobs: taken by Slurm all or not at all, and found again by a later command."""

import os
import signal
import sys

import pytest

from samestep.base.errors import UsageError
from samestep.submit.cluster import Answer, ask
from samestep.submit.site import SlurmSite
from samestep.trials.collect import Frame
from samestep.trials.jobs import Asking, jobs
from samestep.trials.plan import Request, plan
from samestep.trials.submitted import keep, kept, submit_all
from samestep.trials.variants import variants


class Slurm:
    """Takes so many jobs, and remembers what it was asked; while it takes the second it may do something."""

    def __init__(self, takes=3, *, cancels=True, meanwhile=lambda: None):
        self.takes = takes
        self.cancels = cancels
        self.meanwhile = meanwhile
        self.asked = []

    def __call__(self, words):
        self.asked.append(list(words))
        if words[0] == "scancel":
            return Answer(0, "", "") if self.cancels else Answer(1, "", "scancel: error: Slurm is away\n")
        taken = sum(1 for one in self.asked if one[0] == "sbatch")
        if taken == 2:
            self.meanwhile()
        if taken > self.takes:
            return Answer(
                1, "", "sbatch: error: Batch job submission failed: Requested time limit is invalid"
            )
        return Answer(0, f"{40 + taken}\n", "")


def study(folder):
    request = Request(
        target="train.py",
        workers=(1, 2, 4),
        steps=3,
        warm_up=1,
        repeats=2,
        variants=variants(["env:NCCL_ALGO=Ring,Tree"], verb="run", flags=()),
        per_node=2,
        folder=folder,
    )
    frame = Frame(request=request, bar=0.7, places=4, source={"commit": "abc"}, notes=("Each a job.",))
    trials = plan(request)
    asking = Asking(name="scale-train", folder=folder, site=SlurmSite(), python="python")
    return frame, trials, jobs(trials, asking)


def given(folder, slurm, *, taken=lambda jobs: None):
    """Submit the jobs of a study; return them, and what was said of those that were cancelled."""
    said = []
    try:
        return submit_all(study(folder)[2], folder, taken=taken, say=said.append, ask=slurm), said
    except BaseException as error:
        error.said = said
        raise


@pytest.fixture
def heard():
    """Ctrl-C is heard here, whoever runs the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_what_was_submitted_is_found_again(tmp_path):
    frame, trials, made = study(tmp_path / "study")
    taken, said = given(tmp_path / "study", Slurm())
    keep(tmp_path / "study", taken, frame, ["samestep", "scale"])

    assert [(job.number, job.workers, job.log.name) for job in taken] == [
        ("41", 1, "1-41.log"),
        ("42", 2, "2-42.log"),
        ("43", 4, "4-43.log"),
    ]
    assert said == []
    assert (tmp_path / "study" / "jobs" / "4.sbatch").read_text() == made[2].script()
    assert all(trial.clock.is_dir() and trial.scratch.is_dir() for trial in trials)
    assert kept(tmp_path / "study") == (taken, frame, ("samestep", "scale"))


def test_what_slurm_has_taken_is_told_job_by_job(tmp_path):
    told = []
    given(tmp_path, Slurm(), taken=lambda jobs: told.append([job.number for job in jobs]))

    assert told == [["41"], ["41", "42"], ["41", "42", "43"]]


def test_where_slurm_refuses_one_job_none_is_left_in_the_queue(tmp_path):
    slurm = Slurm(takes=2)
    with pytest.raises(UsageError, match="Requested time limit is invalid") as refused:
        given(tmp_path, slurm)

    assert slurm.asked[-1] == ["scancel", "41", "42"]
    assert "4 workers" in str(refused.value)
    assert refused.value.said == ["what was submitted is cancelled: job 41, job 42"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_ends_it_while_slurm_takes_a_job_leaves_none(tmp_path, number):
    slurm, told = Slurm(meanwhile=lambda: os.kill(os.getpid(), number)), []
    with pytest.raises(KeyboardInterrupt) as ended:
        given(tmp_path, slurm, taken=lambda jobs: told.append(jobs[-1].number))

    assert told == ["41", "42"]  # that which was on its way too
    assert slurm.asked[-1] == ["scancel", "41", "42"]
    assert ended.value.said == ["what was submitted is cancelled: job 41, job 42"]


def test_where_nothing_more_can_be_written_no_job_is_left(tmp_path):
    slurm = Slurm(cancels=False)
    (tmp_path / "jobs" / "2.sbatch").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"cannot be kept in .*: Is a directory\.") as failed:
        given(tmp_path, slurm)

    assert slurm.asked[-1] == ["scancel", "41"]
    assert (tmp_path / "jobs" / "1.sbatch").exists()  # of the job that may run
    (said,) = failed.value.said
    assert said == "what was submitted could not be cancelled (scancel: error: Slurm is away): scancel 41"


def test_a_folder_that_takes_no_note_of_the_jobs_is_refused(tmp_path):
    frame, _, _ = study(tmp_path)
    with pytest.raises(UsageError, match=r"cannot be kept in .*: No such file or directory"):
        keep(tmp_path / "gone", [], frame, [])


def test_slurms_commands_do_not_hear_a_ctrl_c():
    code = "import os; print(os.getsid(0) == os.getpid())"

    assert ask([sys.executable, "-Sc", code]).out == "True\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "--collect takes the folder of a study that was submitted"),
        ("{", "is damaged"),
        ("[]", "is not of format 1"),
        ('{"format": 2}', "is not of format 1"),
        ('{"format": 1, "frame": {}}', "is damaged: it does not say what was submitted"),
        ('{"format": 1, "frame": {"request": []}}', "is damaged: it does not say what was submitted"),
    ],
)
def test_a_folder_without_jobs_is_refused(tmp_path, text, said):
    if text is not None:
        (tmp_path / "jobs.json").write_text(text)

    with pytest.raises(UsageError, match=said):
        kept(tmp_path)
