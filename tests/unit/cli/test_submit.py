"""``samestep submit`` refuses wrong input before anything is written, and submits and follows jobs."""

import json
import re
import signal

import pytest

from samestep.base import env
from samestep.cli import submit as module
from samestep.cli import submit as verb
from samestep.cli.main import run_command
from samestep.submit.follow import JobStatus


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys):
    """Run ``samestep submit ...`` in a folder with a script; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "spawns.py").write_text("import torch.multiprocessing as mp\nmp.spawn(print)\n")
    (tmp_path / "notes.ipynb").touch()
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
    ("arguments", "named"),
    [
        (["slurm", "nowhere.py"], "nowhere.py "),
        (["slurm", "verify", "train.py"], "samestep verify .*run, train"),
        (["slurm", "run", "--device", "cpu", "gone.py"], "gone.py "),
        (["slurm", "notes.ipynb"], "notebook"),
        (["slurm", "train.py", "--dry-run"], "--dry-run after train.py .* no such option"),
        (["slurm", "run", "--device", "cpu", "notes.ipynb"], "notebook"),
        (["slurm", "run", "torchrun", "train.py"], "torchrun"),
        (["slurm", "run", "--no-python", "torchrun", "train.py"], "torchrun"),
        (["slurm", "run", "--devize", "cpu", "train.py"], "--devize"),
        (["slurm", "--nproc-per-node", "2", "spawns.py"], "spawns.py:2 .*--launch node"),
        (["slurm", "--nodes", "2", "spawns.py"], "spawns.py:2 .*--launch node"),
        (["slurm", "train", "nosuch"], "'nosuch'.* digits"),
        (["slurm", "train", "digits", "--epochz", "3"], "--epochz .*--epochs"),
        (["slurm", "train", "digits", "--nodes", "2"], "--nodes .*before train"),
        (["slurm", "bench"], "bench .*all-reduce"),
        (["slurm", "bench", "all-reduce", "--sizee", "4"], "--sizee .*--sizes"),
        (["slurm", "doctor", "--nosuch"], "--nosuch"),
        (["slurm", "-n", "0", "train.py"], "-n 0"),
        (["slurm", "--nodes", "0", "train.py"], "--nodes .*0"),
        (["slurm", "--launch", "twice", "train.py"], "--launch 'twice' .*tasks, node"),
        (["slurm", "--warning", "60", "train.py"], "--warning 60 .*--requeue"),
        (["slurm", "--requeue", "train", "digits", "--out", "x"], "--requeue .*--out .*--resume DIR"),
        (["slurm", "--job-name", "a\nb", "train.py"], "--job-name "),
        (["slurm", "--container", "x", "--container-runtime", "docker", "train.py"], "'docker' .*apptainer"),
        (["slurm", "train.py"], "sbatch .*--dry-run"),
        (["mpi", "--hosts", "a:2,b:2", "train.py"], "submit mpi.*mpirun .*--hostfile"),
    ],
)
def test_wrong_input_is_one_line_before_anything_is_written(submit, tmp_path, monkeypatch, arguments, named):
    monkeypatch.setenv("PATH", str(tmp_path))

    code, out, err = submit(*arguments)

    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert re.search(named, line)
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nproc-per-node", 2, "--launch", "node", "spawns.py"),
        ("--nodes", 2, "--launch", "node", "spawns.py"),
        ("--nproc-per-node", 1, "spawns.py"),
        ("--nproc-per-node", 2, "run", "--mode", "native", "spawns.py"),
        ("--nproc-per-node", 2, "run", "-m", "on_the_nodes"),
    ],
)
def test_a_job_may_run_a_script_that_one_process_starts(submit, arguments):
    code, out, err = submit("slurm", "--dry-run", *arguments)

    assert (code, err) == (0, "")
    assert out.rstrip().endswith(str(arguments[-1]))


@pytest.mark.parametrize(
    ("words", "name", "tasks"),
    [
        (["run", "-n4", "train.py", "-n", "3"], "train", 4),
        (["run", "--workers", "4", "train.py"], "train", 4),
        (["run", "--num_processes=4", "train.py"], "train", 4),
        (["run", "--config", "none.toml", "-n", "4", "train.py"], "train", 4),
        (["run", "-m", "-n", "4", "on.nodes"], "on.nodes", 4),
        (["train", "digits", "--workers", "4"], "train-digits", 4),
        (["bench", "all-reduce", "-n", "4"], "bench-all-reduce", 4),
        (["train.py", "-n", "3"], "train", 1),
    ],
)
def test_a_job_has_a_task_for_each_worker_that_its_command_asks_for(submit, tmp_path, words, name, tasks):
    """A file among the options was taken for the program, and --workers for a word of no meaning."""
    (tmp_path / "none.toml").touch()
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv)\n")

    code, out, err = submit("slurm", "--dry-run", *words)

    assert (code, err) == (0, "")
    assert f"--job-name={name}\n" in out
    assert f"--ntasks-per-node={tasks}\n" in out
    assert " ".join(words) in out


@pytest.mark.parametrize(
    ("flags", "tasks"),
    [([], 4), (["-n", "8"], 8), (["--nproc-per-node", "2"], 2), (["-n", "8", "--launch", "node"], 1)],
)
def test_a_default_for_workers_is_that_of_a_job_and_its_command_states_it(submit, tmp_path, flags, tasks):
    """Each start of the job would read the file: one task started 4 workers, and 8 tasks failed."""
    (tmp_path / "pyproject.toml").write_text("[tool.samestep]\nworkers = 4\n")

    _, out, _ = submit("slurm", "--dry-run", *flags, "train.py")

    assert f"--ntasks-per-node={tasks}\n" in out
    assert f" run -n {8 if '-n' in flags else tasks} train.py" in out


@pytest.mark.parametrize(
    "flags",
    [["-n=4"], ["--nproc-per-node", "4"], ["--nproc_per_node=4"], ["--ntasks-per-node", "4"], ["-n", "auto"]],
)
def test_workers_for_which_the_job_has_no_resources_are_refused(submit, tmp_path, flags):
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv)\n")

    assert submit("slurm", "--dry-run", "run", *flags, "train.py")[0] == 2
    assert "--ntasks-per-node=1\n" in submit("slurm", "--dry-run", "run", "train.py", *flags)[1]


def test_a_site_has_defaults_for_its_jobs_and_a_flag_overrides_them(submit):
    site = '[slurm]\npartition = "gpu"\naccount = "physics"\ncpus-per-task = 8\n'

    code, out, _ = submit("slurm", "--dry-run", "-p", "debug", "train.py", site=site)

    assert code == 0
    assert "#SBATCH --partition=debug\n#SBATCH --account=physics\n" in out
    assert "#SBATCH --cpus-per-task=8\n" in out


def test_an_unknown_key_is_named_with_the_nearest(submit, tmp_path):
    code, _, err = submit("slurm", "--dry-run", "train.py", site='[slurm]\nacount = "physics"\n')

    assert code == 2
    assert all(one in err for one in ("[slurm]", "'acount'", "'account'"))


def test_a_flag_of_the_job_after_a_program_that_may_have_it_is_pointed_out(submit, tmp_path):
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv)\n")
    code, out, err = submit("slurm", "--dry-run", "train.py", "--nodes", "2")

    assert code == 0
    assert "run train.py --nodes 2" in out
    assert "`--nodes`" in err


def sbatch(folder, monkeypatch, body):
    """Create a program that takes the place of sbatch."""
    path = folder / "sbatch"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_a_job_is_stored_submitted_and_followed(submit, tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "echo 12")
    ends = JobStatus(words="has failed, exit code 3", exit_code=3)
    monkeypatch.setattr(verb.FollowedSlurmJob, "status", lambda job: ends)

    code, out, err = submit("slurm", "-n", "2", "train.py")

    (file,) = (tmp_path / "jobs").iterdir()
    _, dry, _ = submit("slurm", "-n", "2", "--dry-run", "train.py")
    assert file.read_text() == dry
    assert (code, out) == (3, "")
    submitted, ended = err.splitlines()
    assert re.search(rf"job 12 .*2 workers .*1 node.*jobs/{file.name}", submitted)
    assert ended.startswith(f"samestep: job 12 {ends.words}")


def test_detached_it_prints_the_number_of_the_job(submit, tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "echo '12;cluster'")

    assert submit("slurm", "--detach", "train.py")[:2] == (0, "12\n")


def test_json_has_the_job_and_its_end_and_stderr_the_output_of_the_job(submit, tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "echo loss 1 > log; echo 12")
    ends = JobStatus(words="has failed, exit code 3", log=tmp_path / "log", exit_code=3)
    monkeypatch.setattr(verb.FollowedSlurmJob, "status", lambda job: ends)

    code, out, err = submit("slurm", "--json", "-J", "a", "train.py")
    _, detached, _ = submit("slurm", "--json", "-J", "b", "--detach", "train.py")

    file, other = (str(path.relative_to(tmp_path)) for path in sorted((tmp_path / "jobs").iterdir()))
    record = {"job": "12", "stop": "scancel 12"}
    assert (code, json.loads(out)) == (3, record | {"file": file, "exit_code": 3})
    assert json.loads(detached) == record | {"file": other, "exit_code": None}
    assert "loss 1" in err.splitlines()


def test_json_has_the_text_of_a_job_that_is_not_submitted(submit):
    _, text, _ = submit("slurm", "--dry-run", "train.py")

    assert json.loads(submit("slurm", "--dry-run", "--json", "train.py")[1]) == {"text": text}


def test_the_number_of_a_job_is_printed_despite_a_ctrl_c_during_its_submission(submit, tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "kill -INT $PPID; sleep 0.1; echo 12")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, _, err = submit("slurm", "train.py")
    finally:
        signal.signal(signal.SIGINT, before)

    assert code == 130
    assert "job 12 " in err


def test_a_job_that_slurm_refuses_is_one_line(submit, tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")

    code, _, err = submit("slurm", "train.py")

    assert code == 2
    (line,) = err.splitlines()
    assert re.search(r"jobs/.*\.sbatch: .*invalid partition specified: x$", line)


def test_a_job_that_cannot_be_stored_is_not_submitted(submit, tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "echo 12")
    (tmp_path / "jobs").write_text("in the way")

    code, out, err = submit("slurm", "--detach", "train.py")

    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert "jobs/: File exists" in line


def test_ctrl_c_leaves_the_job_and_prints_the_command_that_stops_it(submit, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    sbatch(tmp_path, monkeypatch, "echo 12")
    monkeypatch.setattr(module, "follow", interrupted)

    code, _, err = submit("slurm", "train.py")

    assert code == 130
    assert err.splitlines()[-1].endswith("scancel 12")
