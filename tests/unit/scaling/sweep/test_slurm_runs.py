"""The jobs of a study are submitted all or not at all, and recorded for a later command."""

import os
import signal
import sys

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.sweep.execution import Frame
from samestep.scaling.sweep.plan import Request, plan, variants
from samestep.scaling.sweep.slurm_runs import jobs, read_jobs, submit_all, write_jobs
from samestep.submit.shell import Answer, run_command
from samestep.submit.site_defaults import SlurmSite


class Slurm:
    """A Slurm that accepts `takes` jobs and records its commands; `meanwhile` is called at the second one."""

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


def study(folder, **more):
    request = Request(
        target="train.py",
        workers=(1, 2, 4),
        steps=3,
        warm_up=1,
        repeats=2,
        variants=variants(["env:NCCL_ALGO=Ring,Tree"], verb="run", flags=()),
        per_node=2,
        folder=folder,
        **more,
    )
    frame = Frame(request=request, bar=0.7, places=4, source={"commit": "abc"}, notes=("Each a job.",))
    trials = plan(request)
    return frame, trials, jobs(trials, folder, name="scale-train", site=SlurmSite(), python="python")


def submitted(folder, slurm, *, record=lambda jobs: None):
    """Submit the jobs of a study; return them, and the reports about cancelled ones."""
    reports = []
    try:
        return submit_all(study(folder)[2], folder, record=record, report=reports.append, ask=slurm), reports
    except BaseException as error:
        error.reports = reports
        raise


def test_the_record_of_submitted_jobs_is_read(tmp_path):
    frame, trials, made = study(tmp_path / "study")
    taken, reports = submitted(tmp_path / "study", Slurm())
    write_jobs(tmp_path / "study", taken, frame, ["samestep", "scale"])

    assert [(job.number, job.trials[0].workers, job.log.name) for job in taken] == [
        ("41", 1, "1-41.log"),
        ("42", 2, "2-42.log"),
        ("43", 4, "4-43.log"),
    ]
    assert reports == []
    assert (tmp_path / "study" / "jobs" / "4.sbatch").read_text() == made[2].script()
    assert all(trial.clock.is_dir() and trial.scratch.is_dir() for trial in trials)
    assert read_jobs(tmp_path / "study") == (taken, frame, ("samestep", "scale"))


def test_the_record_has_one_worker_with_the_cores_of_several(tmp_path):
    frame, _, made = study(tmp_path, on_cores=2)
    taken = submit_all(made, tmp_path, record=lambda jobs: None, report=print, ask=Slurm(takes=4))
    write_jobs(tmp_path, taken, frame, ["samestep", "scale"])

    found, _, _ = read_jobs(tmp_path)
    assert [[(one.workers, one.cores_of) for one in job.trials[:1]] for job in found] == [
        [(1, 1)],
        [(1, 2)],
        [(2, 1)],
        [(4, 1)],
    ]
    assert found == taken


def test_submitted_jobs_are_recorded_one_by_one(tmp_path):
    recorded = []
    submitted(tmp_path, Slurm(), record=lambda jobs: recorded.append([job.number for job in jobs]))

    assert recorded == [["41"], ["41", "42"], ["41", "42", "43"]]


def test_no_job_is_left_in_the_queue_if_slurm_refuses_one(tmp_path):
    slurm = Slurm(takes=2)
    with pytest.raises(UsageError, match="Requested time limit is invalid") as refused:
        submitted(tmp_path, slurm)

    assert slurm.asked[-1] == ["scancel", "41", "42"]
    assert "4 workers" in str(refused.value)
    assert "job 41, job 42" in refused.value.reports[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_job_is_left_in_the_queue_after_a_signal(tmp_path, number):
    slurm, recorded = Slurm(meanwhile=lambda: os.kill(os.getpid(), number)), []
    with pytest.raises(KeyboardInterrupt) as ended:
        submitted(tmp_path, slurm, record=lambda jobs: recorded.append(jobs[-1].number))

    assert recorded == ["41", "42"]  # including the one in progress
    assert slurm.asked[-1] == ["scancel", "41", "42"]
    assert "job 41, job 42" in ended.value.reports[0]


def test_no_job_is_left_in_the_queue_if_a_script_cannot_be_written(tmp_path):
    slurm = Slurm(cancels=False)
    (tmp_path / "jobs" / "2.sbatch").mkdir(parents=True)
    with pytest.raises(UsageError, match="Is a directory") as failed:
        submitted(tmp_path, slurm)

    assert slurm.asked[-1] == ["scancel", "41"]
    assert (tmp_path / "jobs" / "1.sbatch").exists()  # of the job that can still run
    (report,) = failed.value.reports
    assert "Slurm is away" in report
    assert report.endswith("scancel 41")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    frame, _, _ = study(tmp_path)
    with pytest.raises(UsageError, match="No such file or directory"):
        write_jobs(tmp_path / "gone", [], frame, [])


def test_slurms_commands_do_not_receive_a_ctrl_c():
    code = "import os; print(os.getsid(0) == os.getpid())"

    assert run_command([sys.executable, "-Sc", code]).out == "True\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "--collect"),
        ("{", "is damaged"),
        ("[]", "is not of format 1"),
        ('{"format": 2}', "is not of format 1"),
        ('{"format": 1, "frame": {}}', "is damaged"),
        ('{"format": 1, "frame": {"request": []}}', "is damaged"),
    ],
)
def test_a_folder_without_jobs_is_refused(tmp_path, text, problem):
    if text is not None:
        (tmp_path / "jobs.json").write_text(text)

    with pytest.raises(UsageError, match=problem):
        read_jobs(tmp_path)
