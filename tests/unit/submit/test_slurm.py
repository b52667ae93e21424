"""The script of a Slurm job has the expected text, and wrong jobs are refused."""

import pytest

from samestep.base.errors import UsageError
from samestep.submit.job_command import parse_command
from samestep.submit.node_sizes import per_node
from samestep.submit.site_defaults import SlurmSite, with_flags
from samestep.submit.slurm import SlurmJob, script

TASKS = """\
#!/bin/bash
# train: 8 workers on 2 nodes, with a GPU each.
# Written by samestep submit slurm; sbatch takes this file as it is.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=1:00:00
#SBATCH --partition=gpu
#SBATCH --account=physics
#SBATCH --exclusive
#SBATCH --output=jobs/train-%j.log

module load gcc/12 cuda/12.4 || exit
source /home/me/venv/bin/activate || exit
ulimit -n 4096
export PYTHONUNBUFFERED=1  # the log grows with every line printed

#   --cpus-per-task="$SLURM_CPUS_PER_TASK"  srun does not take it from the job (Slurm 22.05 and later)
#   --kill-on-bad-exit=1                    a failed worker ends the others
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \\
    python -m samestep train digits --epochs 10
"""

REQUEUED_NODES = """\
#!/bin/bash
# train-digits: 8 workers on 2 nodes.
# Written by samestep submit slurm; sbatch takes this file as it is.
#SBATCH --job-name="a \\"name\\""
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --output=log
# The workers get SIGUSR1 at least 90 s before the time limit. They finish
# the step and write a checkpoint, and the job is requeued under its number.
#SBATCH --signal=USR1@90
#SBATCH --requeue
#SBATCH --open-mode=append

export PYTHONUNBUFFERED=1  # the log grows with every line printed

#   --cpus-per-task="$SLURM_CPUS_PER_TASK"  srun does not take it from the job (Slurm 22.05 and later)
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \\
    apptainer exec image.sif python3 -m samestep train -n 8 digits \\
    --resume=runs/train-digits-"$SLURM_JOB_ID"

code=$?
# 75: stopped after a checkpoint; 138: ended by the signal. Both can be resumed.
if [ "$code" -eq 75 ] || [ "$code" -eq 138 ]; then
    if [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ]; then
        echo "samestep: the job is requeued" >&2
        scontrol requeue "$SLURM_JOB_ID"
    else
        echo "samestep: the job was requeued 100 times and ends; read its log" >&2
    fi
fi
exit "$code"
"""


def job(words=("train", "digits"), **changes):
    plain = {
        "command": parse_command(list(words)),
        "name": "train",
        "nodes": 2,
        "per_node": 4,
        "site": SlurmSite(),
        "output": "log",
        "python": "/home/me/venv/bin/python",
    }
    return SlurmJob(**plain | changes)


def test_workers_are_tasks_of_slurm():
    site = SlurmSite(
        modules=("gcc/12", "cuda/12.4"),
        venv="/home/me/venv/",
        lines=("ulimit -n 4096",),
        partition="gpu",
        account="physics",
        time="1:00:00",
        cpus_per_task=8,
        directives=("--exclusive",),
    )
    words = ("train", "digits", "--epochs", "10")

    assert script(job(words, site=site, gpus_per_node=4, output="jobs/train-%j.log")) == TASKS


def test_workers_are_started_by_one_samestep_on_each_node_and_the_job_is_requeued():
    site = SlurmSite(container="image.sif", cpus_per_task=8)
    made = job(site=site, launch="node", warning_s=90, name='a "name"')

    assert script(made) == REQUEUED_NODES.replace("# train-digits:", '# a "name":')


@pytest.mark.parametrize(
    ("asked", "each"),
    [
        ({}, 1),
        ({"gpus_per_node": 4}, 4),
        ({"gpus_per_node": 4, "nproc_per_node": 2}, 2),
        ({"workers": 6}, 3),
        ({"in_command": 6}, 3),
        ({"workers": 6, "nproc_per_node": 3, "in_command": 6}, 3),
    ],
)
def test_the_workers_per_node_follow_from_the_numbers_given(asked, each):
    none = {"gpus_per_node": 0, "workers": None, "nproc_per_node": None, "in_command": None}

    assert per_node(nodes=2, **none | asked) == each


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"workers": 3}, "-n 3 .*--nodes 2"),
        ({"workers": 0}, "-n 0"),
        ({"workers": 4, "in_command": 2}, "-n 4 and -n 2"),
        ({"workers": 4, "nproc_per_node": 4}, "--nproc-per-node 4 .*8"),
    ],
)
def test_contradictory_numbers_of_workers_are_refused(asked, named):
    none = {"gpus_per_node": 0, "workers": None, "nproc_per_node": None, "in_command": None}

    with pytest.raises(UsageError, match=named):
        per_node(nodes=2, **none | asked)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"nodes": 0}, "--nodes .*0.* 1"),
        ({"per_node": 0}, "--nproc-per-node .*0"),
        ({"gpus_per_node": -1}, "--gpus-per-node .*-1"),
        ({"warning_s": 0}, "--warning .*0"),
        ({"warning_s": 120, "site": SlurmSite(time="3")}, "--time 3 .*--warning 120.* 60 s"),
        ({"warning_s": 3600, "site": SlurmSite(time="1:00:00")}, "--time 1:00:00 .*--warning 3600"),
        ({"per_node": 4, "gpus_per_node": 2}, "4 workers .*--gpus-per-node .*2"),
    ],
)
def test_a_wrong_job_is_refused(changes, named):
    with pytest.raises(UsageError, match=named):
        job(**changes)


def test_a_warning_shorter_than_the_time_limit_is_accepted():
    for limit in ("", "4", "0", "infinite", "0-1", "3:01"):
        assert job(warning_s=120, site=SlurmSite(time=limit)).site.time == limit


def test_out_and_requeue_are_refused_together():
    with pytest.raises(UsageError, match=r"--requeue .*--out .*--resume DIR"):
        script(job(("train", "digits", "--out", "runs/a"), warning_s=60))


def test_a_given_folder_to_resume_is_kept():
    text = script(job(("train", "digits", "--resume=runs/a"), warning_s=60))

    assert text.count("--resume") == 1


def test_a_number_of_workers_before_the_script_is_that_of_the_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    assert parse_command(["run", "-n", "4", "--device", "cpu", "train.py", "-n", "3"]).workers == 4
    assert parse_command(["run", "-n", "4", "train.py", "-n", "3"]).words(8) == [
        "run",
        "-n",
        "8",
        "train.py",
        "-n",
        "3",
    ]
    assert parse_command(["train.py", "-n", "3"]).workers is None
    assert parse_command(["run", "-n4", "train.py", "-n3"]).words(8) == ["run", "-n", "8", "train.py", "-n3"]
    assert parse_command(["bench", "all-reduce", "--sizes", "4"]).words(2) == [
        "bench",
        "all-reduce",
        "-n",
        "2",
        "--sizes",
        "4",
    ]
    with pytest.raises(UsageError, match=r"nowhere.py"):
        parse_command(["run", "--device", "cpu", "nowhere.py"])


@pytest.mark.parametrize(
    "flags", [["-n=4"], ["--nproc-per-node", "4"], ["--nproc_per_node=4"], ["--nproc-per-node=4"]]
)
def test_workers_for_which_the_job_has_no_resources_are_refused(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    with pytest.raises(UsageError, match=flags[0].partition("=")[0]):
        parse_command(["run", *flags, "train.py"])
    assert parse_command(["run", "train.py", *flags]).workers is None


def test_a_flag_overrides_the_default_of_the_site_and_a_container_its_venv():
    site = SlurmSite(partition="cpu", account="a", venv="/v", modules=("gcc",))

    changed = with_flags(site, {"partition": "gpu", "container": "x.sif", "modules": None, "lines": []})

    assert changed == SlurmSite(partition="gpu", account="a", container="x.sif", modules=("gcc",))
    with pytest.raises(UsageError, match=r"x.sif .*/w"):
        with_flags(site, {"container": "x.sif", "venv": "/w"})
