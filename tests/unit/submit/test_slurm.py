"""The script of a Slurm job has the expected text, and wrong jobs are refused."""

import shutil
import subprocess

import pytest

from samestep.base.errors import UsageError
from samestep.submit.job_command import parse_command, per_node
from samestep.submit.site_defaults import SlurmSite, with_flags
from samestep.submit.slurm import (
    RecordedCommand,
    SlurmJob,
    SlurmRequest,
    recorded_exit_code,
    recorded_script,
    script,
)

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


def test_a_number_of_workers_of_the_command_is_not_given_twice():
    words = ["run", "-n", "4", "--device", "cpu", "train.py", "-n", "3"]
    assert parse_command(words, flags=4, workers=4).words(4) == words
    assert parse_command(words, flags=4, workers=4).name == "train"
    assert parse_command(["train.py", "-n", "3"]).words(2) == ["run", "-n", "2", "train.py", "-n", "3"]
    assert parse_command(["bench", "all-reduce", "--sizes", "4"]).words(2) == [
        "bench",
        "all-reduce",
        "-n",
        "2",
        "--sizes",
        "4",
    ]


def test_a_flag_overrides_the_default_of_the_site_and_a_container_its_venv():
    site = SlurmSite(partition="cpu", account="a", venv="/v", modules=("gcc",))

    changed = with_flags(site, {"partition": "gpu", "container": "x.sif", "modules": None, "lines": []})

    assert changed == SlurmSite(partition="gpu", account="a", container="x.sif", modules=("gcc",))
    with pytest.raises(UsageError, match=r"x.sif .*/w"):
        with_flags(site, {"container": "x.sif", "venv": "/w"})


SCRIPT = """\
#!/bin/bash
# scale-4: 4 workers on 2 nodes.
# Written by samestep scale; sbatch takes this file as it is.
#SBATCH --job-name=scale-4
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --time=10
#SBATCH --output=log

module load gcc/12 || exit
export PYTHONUNBUFFERED=1  # the log grows with every line printed
export WANDB_MODE=disabled

#   --cpus-per-task="$SLURM_CPUS_PER_TASK"  srun does not take it from the job (Slurm 22.05 and later)
#   --kill-on-bad-exit=1                    a failed worker ends the others
failed=0
recorded() {  # FOLDER COMMAND...: run it as the job's tasks, with its output and exit code in the folder
    local folder="$1" code=0
    shift
    [ ! -e "$folder/exit-code" ] || return 0  # a requeued job skips commands that have ended,
    find "$folder" -mindepth 2 -delete  # and removes what an interrupted one has written
    srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 "$@" > "$folder/log.txt" 2>&1 || code=$?
    echo "$code" > "$folder/exit-code.part" && mv "$folder/exit-code.part" "$folder/exit-code"
    [ "$code" -eq 0 ] || failed=1
}

recorded '/study/trials/1 a' \\
    /venv/bin/python -m samestep run train.py '--text=a b'
recorded /study/trials/2 env NCCL_ALGO='Ring, Tree' \\
    /venv/bin/python -m samestep run train.py

exit "$failed"
"""


def asked(**changes):
    plain = {
        "name": "scale-4",
        "nodes": 2,
        "per_node": 2,
        "site": SlurmSite(cpus_per_task=8, time="10", modules=("gcc/12",)),
        "output": "log",
        "python": "/venv/bin/python",
    }
    return SlurmRequest(**plain | changes)


def test_the_script_runs_all_commands_and_exports_common_variables_once(tmp_path):
    off = {"WANDB_MODE": "disabled"}
    first = RecordedCommand(
        words=("run", "train.py", "--text=a b"), folder="/study/trials/1 a", variables=off
    )
    second = RecordedCommand(
        words=("run", "train.py"),
        folder="/study/trials/2",
        variables=off | {"NCCL_ALGO": "Ring, Tree"},
    )

    assert recorded_script(asked(), [first, second], by="samestep scale") == SCRIPT


def test_each_command_records_its_exit_code_and_the_next_one_runs(tmp_path):
    """Run the script with bash, and an srun that only starts its command, as one task."""
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"
    srun.write_text('#!/bin/sh\nshift  # --kill-on-bad-exit=1\nexec "$@"\n')
    srun.chmod(0o755)
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$VALUE $@"\nexit "$3"\n')  # behind -m samestep
    python.chmod(0o755)
    folders = [tmp_path / name for name in ("a", "b c", "d")]
    for folder in folders:
        folder.mkdir()
    (folders[2] / "exit-code").write_text("0\n")  # of the job's first start,
    (folders[1] / "clock").mkdir()
    (folders[1] / "clock" / "rank-0.jsonl").touch()  # which was in the middle of this one
    sequence = [
        RecordedCommand(words=("3",), folder=folders[0], variables={"VALUE": "x y"}),
        RecordedCommand(words=("0", "$odd"), folder=folders[1], variables={"VALUE": "z"}),
        RecordedCommand(words=("1",), folder=folders[2], variables={"VALUE": "z"}),
    ]
    made = asked(nodes=1, site=SlurmSite(), python=str(python))
    bash = shutil.which("bash")
    done = subprocess.run(
        [bash, "-c", recorded_script(made, sequence, by="a test")],
        env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (1, "")
    assert [recorded_exit_code(folder) for folder in folders] == [3, 0, 0]
    assert (folders[0] / "log.txt").read_text() == "x y -m samestep 3\n"
    assert (folders[1] / "log.txt").read_text() == "z -m samestep 0 $odd\n"
    assert not (folders[2] / "log.txt").exists()
    assert list((folders[1] / "clock").iterdir()) == []


def test_a_command_that_has_not_ended_has_no_exit_code(tmp_path):
    assert recorded_exit_code(tmp_path) is None
    (tmp_path / "exit-code").write_text("")
    assert recorded_exit_code(tmp_path) is None
