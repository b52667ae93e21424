"""``samestep run`` names a rank that does not arrive, with the lines of all ranks, and ends the run."""

import re
import socket
from textwrap import dedent

import pytest

from support.commands import finish
from support.forked_commands import samestep, start

DDP = dedent("""\
    import os, signal, sys, time, torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    """)
NUMBER = r"\w+ #(\d+)"


@pytest.fixture
def hanging(tmp_path):
    """Run a script on two workers; return the exit code and samestep's lines about the hang."""

    def run(text, *flags):
        file = tmp_path / "train.py"
        file.write_text((DDP if " step()" in text else "") + dedent(text))
        ended = samestep("run", "-n", 2, "--hang-timeout", 2, *flags, file)
        said = [line for line in ended.err.splitlines() if line.startswith("samestep: ")]
        first = next(i for i, line in enumerate(said) if "error: the r" in line)
        assert sum("error:" in line for line in said) == 1
        return ended.code, [line.removeprefix("samestep: ") for line in said[first:]], file

    return run


def line_with(file, text):
    return next(f"{file}:{n}" for n, line in enumerate(file.read_text().splitlines(), 1) if text in line)


def test_a_rank_that_does_not_call_a_collective_is_named(hanging):
    code, said, file = hanging("""\
    step()
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    time.sleep(1000)
    """)

    assert code == 1
    number = int(re.search(f"rank 1 of 2 .* {NUMBER}, .*rank 0 .* 2 s", said[0])[1])
    assert said[1].startswith(
        f"  rank 0: waiting in all_reduce #{number} at {line_with(file, 'dist.all_reduce')}"
    )
    assert said[2].startswith(
        f"  rank 1: in no collective after {number - 1} collectives, at {line_with(file, 'time.sl')}"
    )
    assert re.search("--hang-timeout .*2 s", said[3])


def test_a_rank_that_sleeps_in_a_step_is_named(hanging):
    code, said, file = hanging("""\
    step()
    if rank == 1:
        time.sleep(1000)
    step()
    """)

    assert code == 1
    assert re.search(f"rank 1 of 2 .* {NUMBER}, .*rank 0 .* 2 s", said[0])
    assert line_with(file, ".backward()") in said[1]
    assert line_with(file, "time.sleep(1000)") in said[2]


def test_a_rank_that_is_stopped_is_named(hanging):
    code, said, file = hanging("""\
    step()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    step()
    """)

    assert code == 1
    assert re.search(f"rank 1 of 2 .* {NUMBER}", said[0])
    assert line_with(file, ".backward()") in said[1]
    assert re.search(r"rank 1: stopped \(process \d+ .*, last seen at ", said[2])


@pytest.mark.parametrize("ending", ["", "dist.destroy_process_group()"])
def test_a_rank_that_has_fewer_steps_is_named(hanging, ending):
    code, said, file = hanging(f"""\
    for _ in range(4 - rank):
        step()
    {ending}
    """)

    assert code == 1
    number = int(re.search(f"rank 1 of 2 .* {NUMBER}, .*rank 0 ", said[0])[1])
    assert line_with(file, ".backward()") in said[1]
    assert re.match(f"  rank 1: ended .* {number - 1} collectives", said[2])
    assert "--hang-timeout" not in said[3]  # the rank is not slow


@pytest.fixture
def under_another_launcher(tmp_path):
    """Run a script as two tasks of another launcher; return exit codes, stderr, and the file."""

    def run(text):
        file = tmp_path / "train.py"
        file.write_text("import time, torch\nimport torch.distributed as dist\n" + dedent(text))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        variables = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
        }
        ranks = [
            start("run", "--hang-timeout", 2, file, RANK=str(rank), LOCAL_RANK=str(rank), **variables)
            for rank in range(2)
        ]
        ended = [finish(process) for process in ranks]
        said = ended[0].err + ended[1].err
        assert said.count("error: the r") == 1
        return [one.code for one in ended], said, file

    return run


def test_a_missing_message_between_tasks_of_another_launcher_is_reported(under_another_launcher):
    codes, said, file = under_another_launcher("""\
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.recv(torch.ones(1), src=1)
        time.sleep(1000)
        """)

    assert codes == [1, 1]
    assert re.search("rank 1 of 2 .* recv, .*rank 0 .* 2 s", said)
    assert f"at {line_with(file, 'dist.recv')}" in said
    assert f"at {line_with(file, 'time.sleep')}" in said


def test_a_rank_that_serves_the_store_and_ends_first_is_named(under_another_launcher):
    codes, said, file = under_another_launcher("""\
        dist.init_process_group("gloo")
        for _ in range(3 + dist.get_rank()):
            dist.all_reduce(torch.ones(1))
        """)

    assert codes == [0, 1]
    assert re.search("rank 0 of 2 .* all_reduce #4, .*rank 1 ", said)
    assert re.search("rank 0: ended .* 3 collectives", said)
    assert f"at {line_with(file, 'dist.all_reduce')}" in said


def test_a_slow_rank_is_no_hang(tmp_path):
    file = tmp_path / "train.py"
    # Unbuffered, print writes text and line end apart, and two workers' lines may share one.
    file.write_text(DDP + "step()\ntime.sleep(5)\nstep()\nsys.stdout.write('well\\n')\n")

    assert samestep("run", "-n", 2, "--hang-timeout", 3, file).out == "well\nwell\n"


def test_a_missing_object_is_reported(hanging):
    code, said, file = hanging("""\
    import time, torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        dist.recv_object_list([None], 1)
    time.sleep(1000)
    """)

    assert code == 1
    assert re.search("rank 1 of 2 .* recv, .*rank 0 .* 2 s", said[0])
    assert line_with(file, "recv_object_list") in said[1]


def test_a_thread_that_waits_for_messages_is_no_hang(tmp_path):
    (tmp_path / "train.py").write_text(
        dedent("""\
        import threading, time, torch, samestep

        with samestep.join(device="cpu") as world:
            if world.place.rank == 0:
                beside = threading.Thread(target=world.recv, args=(torch.zeros(1), 1))
                beside.start()
                time.sleep(4)
                beside.join()
            else:
                time.sleep(3)
                world.send(torch.ones(1), 0)
        """)
    )

    assert samestep("run", "-n", 2, "--hang-timeout", 2, tmp_path / "train.py").code == 0


@pytest.mark.long
def test_a_script_joins_again_after_a_deadlock_of_its_ranks(tmp_path):
    (tmp_path / "train.py").write_text(
        dedent("""\
        import time, torch, samestep
        from samestep.errors import OutOfStep, PeerLost

        with samestep.join(device="cpu") as world:
            try:
                world.send(torch.ones(1), 1 - world.place.rank)
            except OutOfStep as error:
                first = type(error).__name__
        with samestep.join(device="cpu", timeout_s=2) as world:
            world.barrier()
            if world.place.rank == 1:
                time.sleep(7)
            else:
                try:
                    world.barrier()
                except PeerLost as error:
                    print(first, error)
        """)
    )
    ended = samestep("run", "-n", 2, tmp_path / "train.py")

    assert re.match(r"OutOfStep rank 1 is lost to rank 0 .*train\.py:12: time", ended.out), ended.err
