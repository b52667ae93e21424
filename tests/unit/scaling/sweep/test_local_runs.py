"""Runs on this host are executed one after another, each in its own folders, and leave no process."""

import errno
import json
import os
import sys
from pathlib import Path

import pytest

from samestep.base.errors import UsageError
from samestep.launch.local import orphans
from samestep.scaling.sweep import local_runs as local
from samestep.scaling.sweep.local_runs import Local, SlurmCapacity, command, executed, prepare, slurm_capacity
from samestep.scaling.sweep.plan import Request, plan, refuse_too_many, variants
from samestep.scaling.sweep.trial import Load
from support.commands import await_end_of
from support.recordings import recording


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Skip sampling the background load, which takes time."""
    monkeypatch.setattr(local, "sample_load", lambda: None)


def trials_of(folder, **changes):
    asked = {"target": "t.py", "workers": (1, 2), "steps": 1, "warm_up": 0, "repeats": 2, "folder": folder}
    return plan(Request(**(asked | changes)))


MEASURED = (
    {"format": 1, "rank": 0, "size": 1, "kind": "native", "host": "a"},
    {"step": 0, "at": 1.0, "seconds": 0.1, "samples": 4, "forward": 0.1},
)
"""The lines of the one worker of a run."""


def _text(lines):
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def running(code):
    """Return the command of a run: Python code with the folder of the run in its arguments."""
    return lambda trial: [sys.executable, "-c", code, str(trial.folder), str(trial.workers)]


def test_runs_have_their_folders_and_variables_and_leave_no_scratch(tmp_path):
    code = "import os, sys; print(os.environ['WANDB_MODE'], *sorted(os.listdir(sys.argv[1])))"
    trials, reported = trials_of(tmp_path), []
    outcomes = list(Local(running(code)).run(trials, reported.append))

    assert all(one.seconds > 0 for one in outcomes)
    assert reported == [one.trial.in_words() for one in outcomes]
    assert outcomes[0].trial.log.read_text() == "disabled clock log.txt scratch\n"
    assert sorted(path.name for path in outcomes[0].trial.folder.iterdir()) == ["clock", "log.txt"]


def test_the_background_load_is_sampled_before_each_run(tmp_path, monkeypatch):
    events = iter(range(9))
    monkeypatch.setattr(local, "sample_load", lambda: Load(next(events), 9))
    reports = []
    outcomes = list(Local(running("pass")).run(trials_of(tmp_path), lambda _: reports.append(next(events))))

    assert [one.background.busy for one in outcomes] == [0, 2]
    assert reports == [1, 3]


def test_the_repeats_of_a_run_that_fails_are_left_out(tmp_path):
    trials = trials_of(tmp_path, repeats=3)
    outcomes = list(Local(running("import sys; sys.exit(2 + int(sys.argv[2]))")).run(trials, lambda _: None))

    assert sorted(one.exit_code for one in outcomes) == [3, 4]


def test_a_usage_error_of_the_first_run_ends_the_study(tmp_path):
    code = "import sys; print('t.py: error: no such flag'); sys.exit(2)"
    trials, reported = trials_of(tmp_path, repeats=3), []
    with pytest.raises(UsageError, match=r"t\.py: error: no such flag") as caught:
        list(Local(running(code)).run(trials, reported.append))

    assert str(caught.value).startswith(trials[0].in_words())
    assert str(trials[0].log) in str(caught.value)
    assert len(reported) == 1


def test_results_are_kept_after_a_usage_error_of_a_later_run(tmp_path):
    trials = trials_of(tmp_path, repeats=1)
    bad = trials[1].workers
    code = (
        f"import sys; {bad} == int(sys.argv[2]) and sys.exit(2); workers = int(sys.argv[2]); "
        f"[open(sys.argv[1] + f'/clock/rank-{{rank}}.jsonl', 'w').write({_text(MEASURED)!r}"
        ".replace('\"rank\": 0', f'\"rank\": {rank}').replace('\"size\": 1', f'\"size\": {workers}')) "
        "for rank in range(workers)]"
    )
    outcomes = list(Local(running(code)).run(trials, lambda _: None))

    assert [(one.exit_code, bool(one.error)) for one in outcomes] == [(0, False), (2, True)]


def full_from(monkeypatch, run):
    """Simulate a full disk from the preparation of that run on."""
    left = iter(range(1, run))

    def prepared(trial):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        prepare(trial)

    monkeypatch.setattr(local, "prepare", prepared)


def test_a_full_disk_does_not_end_a_study_with_results(tmp_path, monkeypatch):
    full_from(monkeypatch, run=2)
    code = f"import sys; open(sys.argv[1] + '/clock/rank-0.jsonl', 'w').write({_text(MEASURED)!r})"
    trials = trials_of(tmp_path, workers=(1,), repeats=3)
    outcomes = list(Local(running(code)).run(trials, lambda _: None))

    assert [one.error for one in outcomes] == ["", "it could not be started: No space left on device"]
    assert outcomes[1].exit_code is None


def test_a_full_disk_at_the_first_run_ends_the_study(tmp_path, monkeypatch):
    full_from(monkeypatch, run=1)

    with pytest.raises(UsageError, match="No space left on device"):
        list(Local(running("")).run(trials_of(tmp_path), lambda _: None))


def test_files_of_another_node_are_waited_for_after_the_end_of_the_run(tmp_path, monkeypatch):
    (trial,) = trials_of(tmp_path, workers=(2,), repeats=1, per_node=1)
    header = {"format": 1, "size": 2, "kind": "native", "host": "a"}
    step = {"step": 0, "at": 1.0, "seconds": 0.1, "samples": 4, "forward": 0.1}

    def arrive(_seconds):
        for rank in range(2):
            lines = [header | {"rank": rank}, step, {"ended": "steps"}]
            (trial.clock / f"rank-{rank}.jsonl").write_text(_text(lines))

    monkeypatch.setattr(local, "sleep", arrive)
    (outcome,) = Local(running("")).run([trial], lambda _: None)

    assert not outcome.error


def interrupted(folder, code):
    """Execute runs of `code`, which interrupts them; return the process id that it has written."""
    with pytest.raises(KeyboardInterrupt):
        list(Local(running(code)).run(trials_of(folder), lambda _: None))
    (pid,) = folder.rglob("pid")
    return int(pid.read_text())


def test_an_interrupt_ends_the_run_in_progress(tmp_path):
    code = (
        "import os, signal, sys, time; open(sys.argv[1] + '/pid', 'w').write(str(os.getpid())); "
        "os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    )
    pid = interrupted(tmp_path, code)

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_second_ctrl_c_does_not_leave_the_run_running(tmp_path):
    code = (
        "import os, signal, sys, time\n"
        "def asked(*_):\n"
        "    os.kill(os.getppid(), signal.SIGINT); time.sleep(0.2); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, asked); open(sys.argv[1] + '/pid', 'w').write(str(os.getpid()))\n"
        "os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    )
    pid = interrupted(tmp_path, code)

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not list(tmp_path.rglob("scratch"))


def test_processes_of_a_launcher_that_ignores_sigterm_are_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_GRACE_S", 0.1)
    monkeypatch.setattr(orphans, "_GRACE_S", 0.2)  # without a reaper here a process can remain a zombie
    code = (
        "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        "open(sys.argv[1] + '/pid', 'w').write(str(worker.pid)); "
        "os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    )
    assert not await_end_of([interrupted(tmp_path, code)])


def test_torchrun_starts_the_workers(tmp_path):
    compared = variants(["launcher=samestep,torchrun"], verb="run", flags=())
    (words,) = [
        command(trial)
        for trial in trials_of(tmp_path, workers=(2,), repeats=1, variants=compared)
        if trial.launcher == "torchrun"
    ]

    assert words[1:5] == ["-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2"]
    assert words[5].startswith(f"--log-dir={tmp_path}")
    assert words[6:10] == ["--standalone", "-m", "samestep", "run"]
    assert "-n" not in words


def test_srun_outside_of_an_allocation_is_refused_before_any_run(tmp_path):
    compared = variants(["launcher=samestep,srun"], verb="run", flags=())
    trials = trials_of(tmp_path, variants=compared)

    with pytest.raises(UsageError, match="launcher=srun "):
        list(Local().run(trials, lambda _: None))
    assert not list(Path(tmp_path).iterdir())


def test_oversubscription_is_refused_with_both_numbers():
    refuse_too_many([1, 2], places=2, resources="2 cores")
    with pytest.raises(UsageError, match=r"4 workers .* 2 cores.* -n 1,2, or --oversubscribe"):
        refuse_too_many([1, 2, 4, 8], places=2, resources="2 cores")


def test_a_run_is_ended_at_its_limit_of_time(tmp_path):
    """A script that takes long to its first step would take all the time of a measurement, and more."""
    trial = trials_of(tmp_path)[0]
    words = running(
        "import os, sys, time; open(sys.argv[1] + '/pid', 'w').write(str(os.getpid())); time.sleep(60)"
    )
    outcome = executed(trial, words(trial), limit_s=1.0)

    assert (outcome.is_late, bool(outcome.error), outcome.trial) == (True, True, trial)
    await_end_of([int((trial.folder / "pid").read_text())])
    assert not trial.scratch.exists()


SHELL = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}
TWO_BY_TWO = SlurmCapacity(job="12", nodes=2, tasks=2, processors=8, first="gpu07")


def flags(held, workers, **changes):
    """Return the flags of srun except --relative=0 and --kill-on-bad-exit=1."""
    shape = {"nodes": 1, "largest": 4} | changes
    srun, *words, last = held.step(workers, **shape)
    assert (srun, last) == ("srun", "--kill-on-bad-exit=1")
    return [word for word in words if word != "--relative=0"]


def test_the_capacity_of_a_shell_with_an_allocation_is_read():
    assert slurm_capacity(SHELL) == TWO_BY_TWO
    assert slurm_capacity(SHELL | {"SLURM_CPUS_PER_TASK": "3"}).places == 4
    assert slurm_capacity(SHELL).places == 16


def test_without_further_variables_each_node_takes_one_worker():
    assert slurm_capacity({"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2"}) == SlurmCapacity(
        job="12", nodes=2, tasks=1, processors=1
    )


def test_all_nodes_take_as_many_workers_as_the_smallest_one():
    uneven = SHELL | {"SLURM_TASKS_PER_NODE": "3,1", "SLURM_JOB_CPUS_PER_NODE": "3,1"}

    assert slurm_capacity(uneven).places == 2


@pytest.mark.parametrize("name", ["slurm_sbatch_script", "slurm_interactive_step"])
def test_a_job_script_and_the_shell_of_salloc_have_a_capacity(name):
    assert slurm_capacity(recording(name).environment) == SlurmCapacity(
        job="5", nodes=2, tasks=2, processors=2, first="node0"
    )


@pytest.mark.parametrize("name", ["single", "slurm_step_2x2_rank3", "torchrun_one_host_rank1"])
def test_a_task_of_a_step_and_a_process_without_an_allocation_have_no_capacity(name):
    assert slurm_capacity(recording(name).environment) is None


@pytest.mark.parametrize(("largest", "each"), [(1, 2), (4, 2), (5, 3), (16, 8)])
def test_nodes_take_the_requested_tasks_unless_the_largest_step_needs_more(largest, each):
    assert TWO_BY_TWO.per_node(largest) == each


def test_a_worker_has_the_same_number_of_cpus_at_each_size():
    layout = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1"]

    assert flags(TWO_BY_TWO, 1) == [*layout, "--cpus-per-task=4", "--exact"]
    assert flags(TWO_BY_TWO, 4, nodes=2)[-2:] == ["--cpus-per-task=4", "--exact"]
    assert flags(TWO_BY_TWO, 1, largest=16)[-2:] == ["--cpus-per-task=1", "--exact"]
    limited = SlurmCapacity(job="12", nodes=2, tasks=2, processors=8, cpus_per_task=3)
    assert flags(limited, 2)[-2:] == ["--cpus-per-task=3", "--exact"]


def test_the_task_of_a_node_has_the_cpus_of_all_its_workers():
    layout = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]

    assert flags(TWO_BY_TWO, 4, nodes=2, launched="node") == [*layout, "--cpus-per-task=8", "--exact"]


def test_workers_that_share_cpus_at_one_size_share_them_at_each_size():
    assert flags(TWO_BY_TWO, 32, nodes=2, largest=32)[-1] == "--overcommit"
    assert flags(TWO_BY_TWO, 1, largest=32)[-1] == "--overcommit"


def test_the_description_has_the_nodes_and_the_cpus():
    assert TWO_BY_TWO.in_words() == "Slurm allocation 12 (2 node(s) with 8 processor(s): room for 16)"


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1"}, 3),
        ({"SLURM_GPUS": "8"}, 4),
        ({"SLURM_GPUS_PER_TASK": "1"}, 2),
        ({"SLURM_GPUS_ON_NODE": "4", "SLURM_GPUS": "8"}, 4),
        ({}, None),
    ],
)
def test_the_gpus_of_a_node_are_read_from_each_kind_of_request(variables, gpus):
    assert slurm_capacity(SHELL | variables).gpus == gpus


def test_a_step_requests_the_gpus_of_its_workers_only():
    held = SlurmCapacity(job="12", nodes=2, tasks=4, processors=16, gpus=4)

    assert flags(held, 1, largest=8)[-2:] == ["--gpus=1", "--gpus-per-node=1"]
    assert flags(held, 8, nodes=2, largest=8)[-2:] == ["--gpus=8", "--gpus-per-node=4"]
    assert flags(held, 12, nodes=2, largest=12)[-3:] == ["--overcommit", "--gpus=8", "--gpus-per-node=4"]
    assert held.places == 8
    assert SlurmCapacity(job="12", nodes=2, tasks=4, processors=16, gpus=2).per_node(4) == 2
    assert held.in_words() == "Slurm allocation 12 (2 node(s) with 16 processor(s) and 4 GPU(s): room for 8)"


def test_requests_of_the_job_for_each_task_are_removed_for_a_step():
    asked = {"SLURM_NTASKS_PER_GPU": "1", "SLURM_GPUS_PER_TASK": "1", "SLURM_TRES_PER_TASK": "cpu=4"}
    held = slurm_capacity(SHELL | asked)
    begins = {
        workers: held.step(workers, nodes=2, largest=64, launched=launched)[:-1]
        for workers, launched in ((4, "tasks"), (2, "node"), (64, "tasks"))
    }
    all_of_them = ["env", *(word for name in asked for word in ("-u", name)), "srun"]

    assert begins[4][:4] == ["env", "-u", "SLURM_NTASKS_PER_GPU", "srun"]
    assert begins[2][:8] == begins[64][:8] == all_of_them


def test_one_worker_can_have_the_cpus_of_several():
    assert flags(TWO_BY_TWO, 1, cores_of=2)[-2:] == ["--cpus-per-task=8", "--exact"]
    assert flags(TWO_BY_TWO, 1)[-2:] == ["--cpus-per-task=4", "--exact"]
