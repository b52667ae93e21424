"""`samestep scale` and Slurm: its jobs and steps, and wrong input."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from samestep.cli.main import run_command
from samestep.scaling.sweep import local_runs

ALLOCATION = {
    "SLURM_JOB_ID": "12",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
    "SLURM_JOB_NODELIST": "node[0-1]",
}


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    Path("train.py").write_text("import torch\n")


@pytest.fixture
def allocation(monkeypatch):
    """Set the variables of a Slurm allocation of two nodes with two processors each."""
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(local_runs.shutil, "which", lambda name: f"/usr/bin/{name}")


def scale(capsys, *arguments):
    code = run_command(["scale", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_each_number_of_workers_is_printed_as_a_job(capsys):
    flags = ("--submit", "slurm", "--gpus-per-node", 2, "--time", 20, "--load-module", "gcc", "--dry-run")
    code, out, err = scale(capsys, "train.py", "-n", "1,2,4", "--repeats", 2, *flags)

    assert (code, err) == (0, "")
    assert out.count("#!/bin/bash") == 3
    nodes = [line.partition("=")[2] for line in out.splitlines() if line.startswith("#SBATCH --nodes")]
    gpus = [line.partition("=")[2] for line in out.splitlines() if line.startswith("#SBATCH --gpus-per-node")]
    assert (nodes, gpus) == (["1", "1", "2"], ["1", "2", "2"])
    assert out.count("#SBATCH --time=20\n") == out.count("module load gcc || exit\n") == 3
    assert out.count("\nrecorded ") == 6
    assert not Path("studies").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("train.py", "--time", "20"), "--time .*--submit slurm"),
        (("train.py", "--directive=-x"), "--directive .*--submit slurm"),
        (("train.py", "--detach"), "--detach .*--submit slurm"),
        (("train.py", "--submit", "pbs"), "--submit 'pbs' .*slurm"),
        (("train.py", "--submit", "slurm", "--nproc-per-node", 0), "--nproc-per-node .*0"),
        (
            ("train.py", "--submit", "slurm", "--nproc-per-node", 4, "--gpus-per-node", 2),
            "--nproc-per-node 4 .*--gpus-per-node .*2",
        ),
        (("train.py", "--collect", "study"), "--collect study .*train.py"),
        (("--collect", "study", "--dry-run"), "--collect .*--dry-run"),
        (("-n", "2", "--worth", "0.7", "--collect", "study"), "--collect .*-n 2"),
        (("--collect", "study", "--steps=31"), "--collect .*--steps 31"),
        (("--collect", "study", "--mem", "4G"), "--collect .*--mem"),
        (("--collect", "study", "--json", "--worth=70%"), "--collect "),
        (("--collect", "study", "--figures", "x"), "study"),
        (("train.py", "--submit", "slurm", "--detach", "--figures", "x"), "--detach .*--figures"),
        (("train.py", "--figures", "/dev/null/x"), "--figures /dev/null/x .*is a file"),
        (("--collect", "study"), "--collect "),
        ((), "script or a recipe"),
    ],
)
def test_wrong_input_is_refused(capsys, arguments, named):
    code, _, err = scale(capsys, *arguments)

    assert code == 2
    assert re.search(named, err)


def test_without_slurm_nothing_is_written(capsys, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    code, _, err = scale(capsys, "train.py", "--submit", "slurm")

    assert (code, Path("studies").exists()) == (2, False)
    assert "sbatch" in err


def test_if_slurm_does_not_answer_no_folder_is_left(capsys, monkeypatch, tmp_path):
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(
        "#!/bin/sh\necho 'sbatch: fatal: Could not establish a configuration source' >&2\nexit 1\n"
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=os.pathsep)
    Path("mine").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for out in ([], ["--out", "mine"]):
        code, _, err = scale(capsys, "train.py", "--submit", "slurm", *out)

        assert (code, err.count("\n")) == (2, 1)
        assert "Could not establish a configuration source" in err
        assert sorted(tmp_path.rglob("*")) == before


def test_the_numbers_of_submitted_jobs_are_json(capsys, monkeypatch, tmp_path):
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\necho 12\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=os.pathsep)
    flags = ("-n", "1", "--submit", "slurm", "--detach", "--out", "study")

    code, out, _ = scale(capsys, "train.py", *flags, "--json")

    assert (code, json.loads(out)) == (0, {"jobs": ["12"], "study": "study"})


def test_in_an_allocation_runs_are_steps_that_fill_its_nodes(capsys, allocation):
    code, out, err = scale(capsys, "train.py", "-n", "1,2,4", "--repeats", 1, "--dry-run")

    assert code == 0
    steps = sorted(line.partition("srun ")[2].split(" --exact")[0] for line in out.splitlines())
    assert steps == [
        f"--nodes={nodes} --relative=0 --ntasks={n} --ntasks-per-node={n // nodes} --cpus-per-task={cpus}"
        for nodes, n, cpus in (
            (1, 1, 1),
            (1, 1, 2),
            (1, 2, 1),
            (2, 4, 1),
        )  # 2: one worker with a node's cores
    ]
    assert "--threads" not in out
    assert "Slurm allocation 12 (" in err


def test_runs_that_exceed_an_allocation_are_refused_unless_forced(capsys, allocation):
    code, _, err = scale(capsys, "train.py", "-n", "1,8", "--dry-run")

    assert code == 2
    assert re.search("8 workers .*Slurm allocation 12 .*4", err)
    _, out, _ = scale(capsys, "train.py", "-n", "1,8", "--dry-run", "--repeats", 1, "--oversubscribe")
    assert out.count("--overcommit") == 2
    _, _, err = scale(capsys, "train.py", "-n", "1,4", "--threads", 2, "--dry-run")
    assert re.search("4 workers .*Slurm allocation 12 .*2 threads", err)


def test_an_allocation_of_several_nodes_without_srun_is_refused(capsys, allocation, monkeypatch):
    monkeypatch.setattr(local_runs.shutil, "which", lambda name: None)
    code, _, err = scale(capsys, "train.py", "--dry-run")

    assert code == 2
    assert "srun" in err
