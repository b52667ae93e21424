"""The script of a job with several commands has the expected text, and bash runs it."""

import shutil
import subprocess

from samestep.submit.sequence import RecordedCommand, exit_code, script
from samestep.submit.site_defaults import SlurmSite
from samestep.submit.slurm import SlurmRequest

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

    assert script(asked(), [first, second], by="samestep scale") == SCRIPT


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
        [bash, "-c", script(made, sequence, by="a test")],
        env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (1, "")
    assert [exit_code(folder) for folder in folders] == [3, 0, 0]
    assert (folders[0] / "log.txt").read_text() == "x y -m samestep 3\n"
    assert (folders[1] / "log.txt").read_text() == "z -m samestep 0 $odd\n"
    assert not (folders[2] / "log.txt").exists()
    assert list((folders[1] / "clock").iterdir()) == []


def test_a_command_that_has_not_ended_has_no_exit_code(tmp_path):
    assert exit_code(tmp_path) is None
    (tmp_path / "exit-code").write_text("")
    assert exit_code(tmp_path) is None
