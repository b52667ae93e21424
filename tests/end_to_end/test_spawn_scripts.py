"""Scripts that call `torch.multiprocessing.spawn`: samestep starts, watches and clocks their workers."""

from pathlib import Path

import pytest

from samestep.scaling.analysis.study import read_study
from support.commands import finish
from support.forked_commands import samestep, scale, start
from support.tiers import long_param, mostly_long

GALLERY = Path(__file__).parents[1] / "gallery_spawn"
BY_FLAG, BY_COUNT = GALLERY / "spawns_by_flag.py", GALLERY / "spawns_by_count.py"
TRAINS, BY_HAND = GALLERY / "trains_by_count.py", GALLERY / "starts_processes.py"
ON_CPU = ("--device", "cpu")


def run(*arguments, n=2):
    return samestep("run", "-n", n, *ON_CPU, *arguments)


@pytest.mark.parametrize("number", [2, long_param(3)])
def test_the_number_of_workers_is_a_template_in_the_scripts_flags(number):
    ended = run(BY_FLAG, "--gpus", "{n}", n=number)

    assert ended.code == 0, ended.err
    assert [line.split()[0] for line in ended.out.splitlines()] == ["epoch", "epoch", "after"]


def test_the_device_count_is_the_requested_number_of_workers():
    ended = run(BY_COUNT, n=3)

    assert (ended.code, ended.out) == (0, "[3.0, 3.0, 3.0]\njoined\n"), ended.err


def test_without_a_number_the_script_chooses_the_number_of_workers():
    ended = samestep("run", *ON_CPU, BY_FLAG, "--gpus", 2)

    assert ended.code == 0, ended.err


def test_another_number_of_workers_than_requested_is_refused_in_one_line():
    ended = run(BY_FLAG, "--gpus", 3)

    assert ended.code == 2
    assert "-n 3" in ended.err
    assert "{n}" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("option", ["--count", "--sanitize"])
def test_spawned_workers_are_counted_and_sanitized(option):
    ended = run(option, BY_FLAG, "--gpus", 2)

    assert ended.code == 0, ended.err
    assert option != "--count" or "8 steps, 64 samples in training" in ended.err


def test_the_steps_of_spawned_workers_are_clocked(tmp_path):
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


_CATCHES = "except mp.ProcessExitedException as error: print(error.error_index, error.exit_code)"
_JOINS = "\n    try:\n        while not c.join(): pass"
AS_TORCH = {
    "tensors among the arguments are shared": (
        "args[0]['sums'][0][rank] = rank + 1",
        "out = {'sums': [torch.zeros(2)]}; mp.spawn(work, (out,), nprocs=2); print(out['sums'][0].tolist())",
        "[1.0, 2.0]\n",
    ),
    "workers without a group train": (
        "opt = torch.optim.SGD(args[0].parameters(), 0.1); [opt.step() for _ in range(4)]",
        "mp.spawn(work, (torch.nn.Linear(2, 2),), nprocs=2); print('ended')",
        "ended\n",
    ),
    "the run waits for the processes of a context that is not joined": (
        "time.sleep(rank); print('worker', rank, mp.current_process().name[:5], flush=True)",
        "c = mp.spawn(work, nprocs=2, join=False); c.processes[0].join(); print(c.processes[0].exitcode)",
        "worker 0 Spawn\n0\nworker 1 Spawn\n",
    ),
    "the exit code of a worker": (
        "sys.exit(3 * rank)",
        f"try: mp.spawn(work, nprocs=2)\n    {_CATCHES}",
        "1 3\n",
    ),
    "a worker that the script kills": (
        "time.sleep(20)",
        f"c = mp.spawn(work, nprocs=2, join=False); c.processes[1].kill(); {_JOINS}\n    {_CATCHES}",
        "1 -9\n",
    ),
}


@pytest.mark.parametrize("name", AS_TORCH)
def test_spawn_does_what_that_of_torch_does(tmp_path, name):
    body, call, printed = AS_TORCH[name]
    ended = run(spawns(tmp_path, body, call))

    assert (ended.code, ended.out) == (0, printed), ended.err


def test_a_script_that_trains_without_spawning_workers_is_refused_at_its_first_step(tmp_path):
    alone = "torch.optim.SGD([torch.zeros(1)], 0.1).step(); print('trained')"
    call = f"mp.spawn(work, nprocs=2) if len(sys.argv) > 1 else exec({alone!r})"
    ended = run(spawns(tmp_path, "pass", call))

    assert (ended.code, ended.out) == (2, "")
    assert "-n 2 has no effect" in ended.err


def test_a_script_that_reads_a_launchers_rank_and_spawns_no_worker_is_refused_in_one_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch.multiprocessing as mp\n"
        "if 'SPAWNS' in os.environ:\n    mp.spawn(print, nprocs=2)\n"
        "print(os.environ['WORLD_SIZE'])\n"
    )

    ended, native = samestep("run", "-n", 2, script), samestep("run", "-n", 2, "--mode", "native", script)

    assert (ended.code, ended.out, "Traceback" in ended.err) == (2, "", False), ended.err
    assert "--mode native" in ended.err
    assert (native.code, native.out.split()) == (0, ["2", "2"]), native.err


def test_an_option_that_needs_forked_workers_is_refused_where_they_cannot_be_forked(tmp_path):
    call = (
        "import threading; threading.Thread(target=time.sleep, args=(5,), name='beside', daemon=True).start()"
    )
    ended = run("--count", spawns(tmp_path, "pass", f"{call}; mp.spawn(work, nprocs=2)"))

    assert ended.code == 2
    assert "beside" in ended.err


def test_the_number_of_steps_ends_a_script_that_waits_for_its_workers(tmp_path):
    step = "(model(torch.ones(1, 1)).sum().backward(), optimizer.step())"
    body = (
        "model = torch.nn.Linear(1, 1); optimizer = torch.optim.SGD(model.parameters(), 0.1); "
        f"[{step} for _ in range(9)]; args[0].put(rank)"
    )
    call = (
        "q = mp.get_context('spawn').SimpleQueue(); c = mp.spawn(work, (q,), nprocs=2, join=False); "
        "print(q.get(), q.get())"
    )
    folder = tmp_path / "clock"
    ended = run("--clock", folder, "--clock-steps", 3, "--clock-warm-up", 1, spawns(tmp_path, body, call))

    assert (ended.code, ended.out) == (0, ""), ended.err
    assert [len(path.read_text().splitlines()) for path in folder.iterdir()] == [5, 5]


TWICE = """
import sys, torch, torch.multiprocessing as mp
def work(rank, steps):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    for steps in (0, 3, 2):
        mp.spawn(work, (steps,), nprocs=2)
    print("ended")
"""


def test_the_first_call_with_workers_that_train_is_clocked(tmp_path):
    script, folder = tmp_path / "train.py", tmp_path / "clock"
    script.write_text(TWICE)
    ended = run("--clock", folder, "--clock-warm-up", 0, script)

    assert (ended.code, ended.out) == (0, "ended\n"), ended.err
    assert [len(path.read_text().splitlines()) for path in folder.iterdir()] == [5, 5]


@pytest.mark.parametrize("join", [True, False])
def test_a_call_for_no_worker_does_nothing(tmp_path, join):
    call = f"c = mp.spawn(work, nprocs=0, join={join}); print(c.pids() if c else c)"
    ended = samestep("run", spawns(tmp_path, "print('worker')", call))

    assert (ended.code, ended.out) == (0, "None\n" if join else "[]\n"), ended.err


def test_all_processes_of_a_script_write_to_the_same_scratch_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = (
        "open('before', 'w').write('x'); mp.spawn(work, nprocs=2); print(*map(os.path.exists, ('b0', 'b1')))"
    )
    script = spawns(tmp_path, "open(open('before').name[0] + str(rank), 'w').write('y')", call)
    ended = run("--scratch", "scratch", script)

    assert (ended.code, ended.out) == (0, "True True\n"), ended.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch", "train.py"]


def test_other_files_in_the_scratch_folder_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    foreign = [Path("scratch/notes"), Path("scratch/0/notes"), Path("scratch/1/notes")]
    for file in foreign:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    text, call = TRAINS.read_text(), "mp.spawn(train, args=(args.gpus, args.fault), nprocs=args.gpus)"
    script = Path("train.py")
    text = text.replace('"12355"', '"12356"')  # another test may use the port of the gallery's script
    script.write_text(text.replace(call, f"{call} if args.gpus > 1 else train(0, 1, '')"))
    ended = run("--scratch", "scratch", "--clock", "clock", script, n=1)

    assert ended.code == 0, ended.err
    assert [file.read_text() for file in foreign] == ["x", "x", "x"]


def test_spawned_workers_are_bound_to_different_cores(tmp_path):
    script = spawns(tmp_path, "print(*os.sched_getaffinity(0))", "mp.spawn(work, nprocs=2)")
    ended = run("--bind", "core", script)

    first, second = (set(line.split()) for line in ended.out.splitlines())
    assert ended.code == 0, ended.err
    assert first
    assert first.isdisjoint(second)


@pytest.mark.parametrize("way", mostly_long(("by flag", "by count", "alone", "by hand"), ("by flag",)))
def test_steps_of_spawned_workers_are_measured_on_each_number_of_workers(tmp_path, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    text, call = TRAINS.read_text(), "mp.spawn(train, args=(args.gpus, args.fault), nprocs=args.gpus)"
    assert call in text
    if way == "alone":
        text = text.replace('"12355"', '"12356"')
        text = text.replace(call, f"{call} if args.gpus > 1 else train(0, 1, '')")
    arguments = {"by flag": ("--gpus", "{n}"), "by hand": ("--size", "{n}")}.get(way, ())
    Path("train.py").write_text(BY_HAND.read_text() if way == "by hand" else text)
    flags = ("--steps=4", "--warm-up=2", "--repeats=1", "--oversubscribe", "--out=study", "--device=cpu")
    ended = scale("-n", "1,2", *flags, "train.py", *arguments)

    assert ended.code == 0, ended.err
    points = read_study(Path("study")).points
    assert [(point.workers, point.global_batch) for point in points] == [(1, 24), (2, 24)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study", "train.py"]


@pytest.mark.parametrize("method", ["fork", long_param("spawn")])
def test_processes_that_a_script_starts_by_hand_are_its_workers(method):
    ended = samestep("run", "-n", 3, "--count", BY_HAND, "--size", "{n}", "--method", method)

    assert ended.code == 0, ended.err
    assert sorted(line[:11] for line in ended.out.splitlines()) == [
        "exit codes:",
        *(f"rank {rank} of 3" for rank in range(3) for _ in range(3)),
    ]
    assert "[0, 0, 0]" in ended.out
    assert "12 steps" in ended.err


def test_two_simultaneous_runs_of_a_script_have_separate_groups():
    commands = [start("run", "-n", 2, BY_HAND) for _ in range(2)]
    ends = [finish(command) for command in commands]

    assert [ended.code for ended in ends] == [0, 0], ends
    assert all("[0, 0]" in ended.out for ended in ends)


@pytest.mark.parametrize("number", [long_param(1), 3])
def test_another_number_of_processes_than_requested_is_refused_in_one_line(number):
    ended = samestep("run", "-n", number, BY_HAND)

    assert ended.code == 2
    assert f"-n {number}" in ended.err
    assert "Traceback" not in ended.err
    assert not ended.out


def test_a_process_that_fails_ends_the_others_and_is_named():
    ended = samestep("run", "-n", 2, BY_HAND, "--fault", "crash")

    assert ended.code == 1
    assert "rank 1 of 2" in ended.err
    assert "ValueError: asked to fail" in ended.err
    assert not ended.out


def test_other_processes_are_started_unchanged(tmp_path):
    script = tmp_path / "train.py"
    text = BY_HAND.read_text()
    beside = "    with mp.Pool(1) as pool: print(pool.map(abs, [-1]))\n    processes = []\n"
    assert "    processes = []\n" in text
    script.write_text(text.replace("    processes = []\n", beside).replace("mp.set_start_method", "str"))
    ended = samestep("run", "-n", 2, script)

    assert ended.code == 0, ended.err
    assert ended.out.startswith("[1]\n")


def test_processes_that_a_script_has_started_have_sentinels_are_closed_and_followed_by_others(tmp_path):
    text, before = BY_HAND.read_text(), "p.join()\n    print("
    assert before in text
    waits = "from multiprocessing.connection import wait; wait([p.sentinel]); print('code', p.exitcode)"
    script = tmp_path / "train.py"
    again = "p = [mp.Process(target=init_process, args=(r, 2, run, '')) for r in range(2)]"
    ends = "[one.start() for one in p]; [one.join() for one in p]; print([one.exitcode for one in p])"
    script.write_text(text.partition(before)[0] + f"{waits}; p.close()\n    {again}; {ends}\n")
    ended = samestep("run", "-n", 2, script)

    assert ended.code == 0, ended.err
    assert ended.out.count("code 0") == 2
    assert ended.out.endswith("[0, 0]\n")


SEEDED = """
import random, sys, numpy as np, torch, torch.multiprocessing as mp
def seed(number):
    torch.manual_seed(number), np.random.seed(number), random.seed(number)
{at_import}
def work(rank):
    print(torch.rand(1).item(), np.random.rand(), random.random(), flush=True)
if __name__ == "__main__":
    seed(99)
    {call}
"""
STARTS = "[mp.Process(target=work, args=(rank,)).start() for rank in range(2)]"


GROUP = "import torch.distributed as dist; init = lambda rank: dist.init_process_group(rank=rank)"


@pytest.mark.parametrize(
    ("at_import", "call", "equal"),
    [
        ("seed(7)", "mp.spawn(work, nprocs=2)", (True, True, True)),
        ("", "mp.spawn(work, nprocs=2)", (False, False, False)),
        # Python seeds its own generator again in each process that it forks.
        (GROUP, f"len(sys.argv) > 9 and init(1); {STARTS}", (True, True, False)),
    ],
)
def test_workers_have_the_seeds_of_workers_that_torch_spawns(tmp_path, at_import, call, equal):
    script = tmp_path / "train.py"
    script.write_text(SEEDED.format(at_import=at_import, call=call))
    ended = samestep("run", "-n", 2, script)
    numbers = [line.split() for line in ended.out.splitlines()]

    assert ended.code == 0, ended.err
    assert tuple(a == b for a, b in zip(*numbers, strict=True)) == equal
