"""``samestep submit``: what is wrong is said before anything is written; what is right is handed over."""

import signal

import pytest

from samestep.base import env
from samestep.cli import submit_slurm, submitting
from samestep.cli.main import run_command
from samestep.submit.follow import Seen


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys):
    """Run ``samestep submit ...`` in a folder with a script; return its exit code, output and words."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    config = tmp_path / "config"

    def command(*arguments, site=""):
        if site:
            (config / "samestep").mkdir(parents=True, exist_ok=True)
            (config / "samestep" / "config.toml").write_text(site)
        monkeypatch.setattr(env, "snapshot", lambda: {"XDG_CONFIG_HOME": str(config)})
        code = run_command(["submit", *map(str, arguments)])
        return code, *capsys.readouterr()

    return command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["slurm", "nowhere.py"], "nowhere.py does not exist"),
        (["slurm", "verify", "train.py"], "samestep verify is no job for several workers"),
        (["slurm", "run", "--split", "loader", "gone.py"], "none of these is a script that is there"),
        (["slurm", "--nodes", "0", "train.py"], "--nodes 0: there must be at least 1"),
        (["slurm", "--launch", "twice", "train.py"], "--launch 'twice' is neither of tasks and node"),
        (["slurm", "--warning", "60", "train.py"], "give --requeue too"),
        (["slurm", "--requeue", "train", "digits", "--out", "x"], "Give --resume DIR in its place"),
        (["slurm", "--job-name", "a\nb", "train.py"], "holds a line break"),
        (["slurm", "--container", "x", "--container-runtime", "docker", "train.py"], "is none of apptainer"),
        (["slurm", "train.py"], "there is no sbatch on this machine"),
        (["mpi", "train.py"], "which hosts? Give --hosts a:2,b:2"),
        (["mpi", "--hosts", "a:none", "train.py"], "'none' is not a number of workers"),
        (["mpi", "--hosts", "a", "--hostfile", "f", "train.py"], "give one of the two"),
        (["mpi", "--hostfile", "gone", "train.py"], "cannot read the hostfile gone"),
        (["mpi", "--hosts", "a", "train.py"], "no mpirun of Open MPI or MPICH is on the PATH"),
        (["mpi", "--hosts", "a", "--ssh", "'", "train.py"], "is no command of a shell: no closing quotation"),
        (["mpi", "--hosts", "a", "--ssh", "", "train.py"], "ssh '' names no command"),
        (["mpi", "--hosts", "a", "--flavour", "lam", "train.py"], "'lam' is neither of openmpi and mpich"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_is_written(submit, tmp_path, monkeypatch, arguments, said):
    monkeypatch.setenv("PATH", str(tmp_path))

    code, out, err = submit(*arguments)

    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert said in line
    assert not (tmp_path / "jobs").exists()


def test_a_site_says_once_what_all_its_jobs_need_and_a_flag_beats_it(submit):
    site = '[slurm]\npartition = "gpu"\naccount = "physics"\ncpus-per-task = 8\n'

    code, out, _ = submit("slurm", "--dry-run", "-p", "debug", "train.py", site=site)

    assert code == 0
    assert "#SBATCH --partition=debug\n#SBATCH --account=physics\n" in out
    assert "#SBATCH --cpus-per-task=8\n" in out


def test_a_key_that_there_is_not_is_named_with_the_nearest(submit, tmp_path):
    code, _, err = submit("slurm", "--dry-run", "train.py", site='[slurm]\nacount = "physics"\n')

    assert code == 2
    assert all(one in err for one in ("[slurm]", "'acount'", "account."))


def test_a_flag_of_the_job_behind_the_program_is_pointed_out(submit):
    code, out, err = submit("slurm", "--dry-run", "train.py", "--nodes", "2")

    assert code == 0
    assert "run train.py --nodes 2" in out
    assert "--nodes behind train.py was handed to it" in err


def sbatch(folder, monkeypatch, body):
    """Make a program that stands for sbatch."""
    path = folder / "sbatch"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_a_job_is_kept_submitted_and_followed(submit, tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "echo 12")
    ends = Seen(words="has failed, exit code 3", exit_code=3)
    monkeypatch.setattr(submit_slurm.SlurmFollowed, "look", lambda job: ends)

    code, out, err = submit("slurm", "-n", "2", "train.py")

    (kept,) = (tmp_path / "jobs").iterdir()
    _, dry, _ = submit("slurm", "-n", "2", "--dry-run", "train.py")
    assert kept.read_text() == dry
    assert (code, out) == (3, "")
    assert err.splitlines() == [
        f"samestep: job 12 is submitted: 2 workers on 1 node, in jobs/{kept.name}.",
        "samestep: job 12 has failed, exit code 3.",
    ]


def test_detached_it_prints_the_number_of_the_job(submit, tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "echo '12;cluster'")

    assert submit("slurm", "--detach", "train.py")[:2] == (0, "12\n")


def test_the_number_of_a_job_is_told_whoever_presses_ctrl_c_meanwhile(submit, tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "kill -INT $PPID; sleep 0.1; echo 12")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, _, err = submit("slurm", "train.py")
    finally:
        signal.signal(signal.SIGINT, before)

    assert code == 130
    assert "job 12 is submitted" in err


def test_a_job_that_slurm_refuses_is_one_line(submit, tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")

    code, _, err = submit("slurm", "train.py")

    assert code == 2
    (line,) = err.splitlines()
    assert line.endswith(".sbatch: invalid partition specified: x")


def test_where_nothing_can_be_kept_nothing_is_submitted(submit, tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "echo 12")
    (tmp_path / "jobs").write_text("in the way")

    code, out, err = submit("slurm", "--detach", "train.py")

    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert "the job cannot be kept in jobs/ here: File exists" in line


def test_ctrl_c_leaves_the_job_and_says_how_to_stop_it(submit, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    sbatch(tmp_path, monkeypatch, "echo 12")
    monkeypatch.setattr(submitting, "follow", interrupted)

    code, _, err = submit("slurm", "train.py")

    assert code == 130
    assert err.splitlines()[-1] == "samestep: job 12 goes on without being followed. To stop it: scancel 12"
