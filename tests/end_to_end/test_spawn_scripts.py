"""Scripts that call `torch.multiprocessing.spawn`: samestep starts, watches and clocks their workers."""

from pathlib import Path

import pytest

from support.forked_commands import samestep

GALLERY = Path(__file__).parents[1] / "gallery_spawn"
BY_FLAG, BY_COUNT = GALLERY / "spawns_by_flag.py", GALLERY / "spawns_by_count.py"
ON_CPU = ("--device", "cpu")


def run(*arguments, n=2):
    return samestep("run", "-n", n, *ON_CPU, *arguments)


@pytest.mark.parametrize("number", [2, 3])
def test_the_number_of_workers_is_a_template_in_the_scripts_flags(number):
    ended = run(BY_FLAG, "--gpus", "{n}", n=number)

    assert ended.code == 0, ended.err
    assert [line.split()[0] for line in ended.out.splitlines()] == ["epoch", "epoch", "after"]


def test_the_script_sees_as_many_gpus_as_workers_were_asked_for():
    ended = run(BY_COUNT, n=3)

    assert (ended.code, ended.out) == (0, "[3.0, 3.0, 3.0]\njoined\n"), ended.err


def test_without_a_number_the_script_decides():
    ended = samestep("run", *ON_CPU, BY_FLAG, "--gpus", 2)

    assert ended.code == 0, ended.err


def test_another_number_than_asked_for_is_refused_in_one_line():
    ended = run(BY_FLAG, "--gpus", 3)

    assert ended.code == 2
    assert "-n 3" in ended.err
    assert "{n}" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("option", ["--count", "--sanitize"])
def test_its_workers_are_observed(option):
    ended = run(option, BY_FLAG, "--gpus", 2)

    assert ended.code == 0, ended.err
    assert option != "--count" or "8 steps, 64 samples in training" in ended.err


def test_the_steps_of_its_workers_are_clocked(tmp_path):
    ended = run("--clock", tmp_path / "clock", BY_FLAG, "--gpus", 2)

    assert ended.code == 0, ended.err
    assert len(list((tmp_path / "clock").glob("*rank*"))) == 2


def test_a_worker_that_fails_ends_the_others_and_is_named():
    ended = run(BY_FLAG, "--gpus", 2, "--fail", 1)

    assert ended.code == 1
    assert "rank 1 of 2" in ended.err
    assert "RuntimeError: asked to fail" in ended.err
    assert "after the training" not in ended.out


def test_a_hang_names_the_ranks_and_lines():
    ended = run("--hang-timeout", 3, BY_FLAG, "--gpus", 2, "--hang", 0)

    assert ended.code == 1
    assert "spawns_by_flag.py:27" in ended.err


def spawns(folder, body, call):
    script = folder / "train.py"
    lines = [
        "import os, sys, time, torch, torch.multiprocessing as mp",
        f"def work(rank, *args):\n    {body}",
        f"if __name__ == '__main__':\n    {call}",
    ]
    script.write_text("\n".join(lines) + "\n")
    return script


def test_tensors_among_the_arguments_are_shared(tmp_path):
    call = (
        "out = {'sums': [torch.zeros(2)]}; mp.spawn(work, (out,), nprocs=2); print(out['sums'][0].tolist())"
    )
    ended = run(spawns(tmp_path, "args[0]['sums'][0][rank] = rank + 1", call))

    assert (ended.code, ended.out) == (0, "[1.0, 2.0]\n"), ended.err


def test_workers_that_need_no_group_may_train(tmp_path):
    body = "opt = torch.optim.SGD(args[0].parameters(), 0.1); [opt.step() for _ in range(4)]"
    ended = run(spawns(tmp_path, body, "mp.spawn(work, (torch.nn.Linear(2, 2),), nprocs=2); print('ended')"))

    assert (ended.code, ended.out) == (0, "ended\n"), ended.err


def test_a_script_that_trains_without_spawning_workers_is_refused_at_its_first_step(tmp_path):
    alone = "torch.optim.SGD([torch.zeros(1)], 0.1).step(); print('trained')"
    call = f"mp.spawn(work, nprocs=2) if len(sys.argv) > 1 else exec({alone!r})"
    ended = run(spawns(tmp_path, "pass", call))

    assert (ended.code, ended.out) == (2, "")
    assert "-n 2 has no effect" in ended.err


def test_a_context_that_is_not_joined_has_processes_and_is_waited_for(tmp_path):
    call = "c = mp.spawn(work, nprocs=2, join=False); c.processes[0].join(); print(c.processes[0].exitcode)"
    ended = run(spawns(tmp_path, "time.sleep(rank); print('worker', rank, flush=True)", call))

    assert (ended.code, ended.out) == (0, "worker 0\n0\nworker 1\n"), ended.err


def test_the_exit_code_of_a_worker_is_reported_as_by_torch(tmp_path):
    call = "\n    ".join(
        [
            "try: mp.spawn(work, nprocs=2)",
            "except mp.ProcessExitedException as error: print(error.error_index, error.exit_code)",
        ]
    )
    ended = run(spawns(tmp_path, "sys.exit(3 * rank)", call))

    assert (ended.code, ended.out) == (0, "1 3\n"), ended.err


def test_an_option_that_needs_forked_workers_is_refused_where_they_cannot_be_forked(tmp_path):
    call = (
        "import threading; threading.Thread(target=time.sleep, args=(5,), name='beside', daemon=True).start()"
    )
    ended = run("--count", spawns(tmp_path, "pass", f"{call}; mp.spawn(work, nprocs=2)"))

    assert ended.code == 2
    assert "beside" in ended.err
