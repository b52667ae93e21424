"""``samestep run``: programs run on every worker as they would in a fresh interpreter under torchrun."""

import json
import signal
import socket
import time
from textwrap import dedent

import pytest

from support import commands
from support.commands import finish, free_port
from support.forked_commands import lines, samestep, start


@pytest.fixture
def script(tmp_path):
    def write(text, name="prog.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
        return file

    return write


def printed(ended):
    """Return the objects that the workers printed, in rank order."""
    # Two workers' lines may share one: print writes text and line end apart.
    objects = ended.out.replace("}{", "}\n{").split("\n")
    return sorted((json.loads(line) for line in objects if line), key=lambda report: report["rank"])


def test_workers_form_a_group_and_run_as_in_a_fresh_interpreter(script, tmp_path):
    prog = script(
        """\
        import atexit, json, os, pathlib, pickle, random, sys
        import numpy, torch, torch.distributed as dist

        class Local: pass

        rank = int(os.environ["RANK"])
        atexit.register(lambda: pathlib.Path(__file__).with_name(f"left_{rank}").touch())
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        draws = [numpy.random.rand(), random.random(), torch.rand(1, dtype=torch.float64).item()]
        print(json.dumps({
            "rank": rank, "argv": sys.argv, "path": sys.path[0], "file": __file__, "name": __name__,
            "pickled": type(pickle.loads(pickle.dumps(Local()))).__module__, "total": total.item(),
            "draws": draws, "threads": torch.get_num_threads(),
            "restarts": os.environ["TORCHELASTIC_RESTART_COUNT"],
            "module": sys.modules["__main__"].Local is Local,
        }))
        dist.destroy_process_group()
        """
    )
    ended = commands.samestep(
        "run", "--nproc_per_node", 2, "--threads", 1, prog, "--flag", "-n", "3", "--", "a b"
    )

    assert ended.code == 0, ended.err
    workers = printed(ended)
    assert [worker["total"] for worker in workers] == [2.0, 2.0]
    for worker in workers:
        assert worker["argv"] == [str(prog), "--flag", "-n", "3", "--", "a b"]
        assert worker["path"] == str(tmp_path)
        assert worker["file"] == str(prog)
        assert (worker["name"], worker["pickled"], worker["module"]) == ("__main__", "__main__", True)
        assert (worker["threads"], worker["restarts"]) == (1, "0")
        assert (tmp_path / f"left_{worker['rank']}").exists(), "atexit handlers did not run"
    assert not set(workers[0]["draws"]) & set(workers[1]["draws"]), "workers share a random state"
    assert len(ended.err.splitlines()) == 2, ended.err


def test_a_module_of_a_package_runs_and_its_exit_code_is_the_runs(script, tmp_path):
    script("", "pkg/__init__.py")
    script("CODE = 7", "pkg/codes.py")
    script(
        """\
        import json, os, sys
        import torch.distributed as dist
        from .codes import CODE

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        print(json.dumps({"rank": rank, "argv": sys.argv[1:], "spec": __spec__.name}), flush=True)
        dist.barrier()
        sys.exit(CODE if rank == 1 else 0)
        """,
        "pkg/tool.py",
    )
    ended = commands.samestep("run", "-n", 2, "-m", "pkg.tool", "-x", PYTHONPATH=str(tmp_path))

    assert ended.code == 7
    assert printed(ended) == [{"rank": rank, "argv": ["-x"], "spec": "pkg.tool"} for rank in (0, 1)]
    assert "rank 1 of 2" in ended.err
    assert "exit code 7" in ended.err
    assert "Traceback" not in ended.err


def test_any_executable_gets_torchruns_variables():
    text = 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK $GROUP_RANK $MASTER_ADDR ${MASTER_PORT:+port} $1"'
    ended = samestep("run", "-n", 2, "--no-python", "sh", "-c", text, "name", "an argument")

    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == [f"{r}/2 {r} 0 127.0.0.1 port an argument" for r in (0, 1)]


def test_spawned_processes_get_instances_of_a_class_of_the_script(script):
    prog = script(
        """\
        import json, multiprocessing, os

        class Item:
            def __init__(self, value): self.value = value

        def work(item): return Item(item.value + 1)

        if __name__ == "__main__":
            import torch.distributed as dist
            dist.init_process_group("gloo")
            with multiprocessing.get_context("forkserver").Pool(1) as pool:
                (item,) = pool.map(work, [Item(1)])
            print(json.dumps({"rank": dist.get_rank(), "value": item.value}))
        """
    )
    # Processes beside a process group look like workers started by hand.
    ended = commands.samestep("run", "-n", 2, "--mode", "native", prog)

    assert ended.code == 0, ended.err
    assert printed(ended) == [{"rank": 0, "value": 2}, {"rank": 1, "value": 2}]


def test_a_script_that_spawns_is_started_once(script):
    prog = script(
        """\
        import json, os
        import torch, torch.distributed as dist, torch.multiprocessing as mp

        def main(rank, path):
            dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
            total = torch.ones(1)
            dist.all_reduce(total)
            print(json.dumps({"rank": rank, "total": total.item()}), flush=True)
            dist.destroy_process_group()

        if __name__ == "__main__":
            assert "RANK" not in os.environ
            mp.start_processes(main, args=(__file__ + ".store",), nprocs=2, start_method="fork")
        """
    )
    ended = samestep("run", "-n", 2, prog)

    assert ended.code == 0, ended.err
    assert printed(ended) == [{"rank": 0, "total": 2.0}, {"rank": 1, "total": 2.0}]
    assert "started once" in ended.err


def test_a_serial_script_without_calls_to_split_runs_once_and_the_reason_is_named(script):
    prog = script("import sys; print('ran', *sys.argv[1:])")

    for workers in (1, 2):
        ended = samestep("run", "-n", workers, prog, "-v")
        assert (ended.code, ended.out) == (0, "ran -v\n")
        assert ("nothing was split: it calls no module with parameters" in ended.err) == (workers == 2)


def test_a_serial_script_has_equal_output_on_one_and_two_workers(script, tmp_path):
    prog = script(
        """\
        import os, sys, torch
        torch.set_default_dtype(torch.float64)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        torch.manual_seed(0)
        for weight in model.parameters():
            torch.nn.init.uniform_(weight, -1, 1)
        for step in range(5):
            x = torch.randn(7, 4)
            loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            launchers = ("RANK", "GLOO_SOCKET_IFNAME", "SECRET_FILE")
            named = [name for name in os.environ if any(part in name for part in launchers)]
            print(f"{step} {loss.item():.9f}", named)
        def at_exit():
            print("at exit", int(os.environ.get("WORLD_SIZE", 1)), torch.distributed.is_initialized())
            with open(sys.argv[1], "a") as file:
                file.write("once")
        import atexit; atexit.register(at_exit)
        sys.exit(3)
        """
    )
    serial = commands.samestep("run", "-n", 1, prog, tmp_path / "1")
    shared = samestep("run", "-n", 2, prog, tmp_path / "2")

    assert serial.code == shared.code == 3
    assert shared.out == serial.out
    assert serial.out.splitlines()[0].endswith(" []")  # one worker has no rank and no peers either
    assert shared.out.endswith("at exit 1 False\n")
    assert (tmp_path / "2").read_text() == "once"
    assert "Sequential at prog.py:10: 4 calls split" in shared.err
    assert "Sequential" not in serial.err

    (temporary := tmp_path / "temporary").mkdir()
    explained = samestep("run", "-n", 2, "--explain", prog, tmp_path / "3", TMPDIR=str(temporary))
    assert (explained.code, explained.out) == (0, ""), explained.err
    assert "Sequential at prog.py:10: 3 calls split" in explained.err
    assert not (tmp_path / "3").exists()
    assert not list(temporary.glob("samestep-*"))


def test_workers_without_a_group_are_reported_as_silent_copies(script):
    prog = script(
        """\
        import os, torch.distributed as dist
        if "NEVER" in os.environ:
            dist.init_process_group("gloo")
        """
    )
    # Whether workers have met is seen by what they have loaded.
    ended = commands.samestep("run", "-n", 2, prog)

    assert ended.code == 1
    assert "silent copies" in ended.err
    assert samestep("run", "-n", 2, "--mode", "native", prog).code == 0


def test_output_is_stored_by_rank_and_printed_with_the_rank(script, tmp_path):
    prog = script(
        """\
        import sys, torch.distributed as dist
        dist.init_process_group("gloo")
        print("out", dist.get_rank())
        print("err", dist.get_rank(), file=sys.stderr)
        dist.barrier()
        assert dist.get_rank() == 0, "rank 1 fails"
        """
    )
    logs = tmp_path / "logs"
    ended = samestep("run", "-n", 2, "--log-dir", logs, "--tee", 1, "-r", 2, "--rdzv-id", "me", prog)

    assert ended.code == 1
    assert sorted(ended.out.splitlines()) == ["[rank0]: out 0", "[rank1]: out 1"]
    folder = logs / "me" / "attempt_0"
    for rank in (0, 1):
        assert (folder / str(rank) / "stdout.log").read_text() == f"out {rank}\n"
        assert (folder / str(rank) / "stderr.log").read_text().startswith(f"err {rank}\n")
    assert "rank 1 fails" in (folder / "1" / "stderr.log").read_text()
    assert "err 0" not in ended.err
    assert ended.err.count("AssertionError: rank 1 fails") == 1


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_two_launchers_on_one_host_are_two_nodes(script, backend):
    prog = script(
        """\
        import json, os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        node = int(os.environ["GROUP_RANK"])
        print(json.dumps({"rank": dist.get_rank(), "node": node, "total": total.item()}))
        dist.destroy_process_group()
        """
    )
    port = free_port()
    meet = {
        "static": ["--master-addr", "127.0.0.1", "--master-port", port],
        "c10d": ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "two"],
    }[backend]
    both = [
        start("run", "--nnodes", 2, "--node-rank", node, "--nproc-per-node", 1, *meet, prog)
        for node in (1, 0)
    ]
    ended = [finish(command) for command in both]

    assert [run.code for run in ended] == [0, 0], "\n".join(run.err for run in ended)
    reports = sorted((json.loads(run.out) for run in ended), key=lambda report: report["rank"])
    assert reports == [{"rank": 0, "node": 0, "total": 2.0}, {"rank": 1, "node": 1, "total": 2.0}]


def test_a_run_of_up_to_two_nodes_goes_on_without_one_that_has_ended(script):
    prog = script(
        """\
        import time, samestep
        with samestep.join(device="cpu", timeout_s=60) as world:
            print(world.place.size, flush=True)
            while world.place.size == 2:
                world.barrier()
                time.sleep(0.02)
        """
    )
    port = free_port()
    meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--max-restarts", 2)
    flags = ("--nnodes", "1:2", "--nproc-per-node", 1, *meet, "--rdzv-conf", "last_call_timeout=5")
    serving = start("run", *flags, prog)  # it serves the store of the rendezvous
    with socket.socket() as asked:
        while asked.connect_ex(("127.0.0.1", port)):
            assert serving.poll() is None, serving.communicate()
            time.sleep(0.02)
    other = start("run", *flags, prog)
    assert lines(serving, 1) == ["2"]
    other.send_signal(signal.SIGTERM)
    ends = [finish(command) for command in (serving, other)]

    assert [ended.code for ended in ends] == [0, 128 + signal.SIGTERM], ends
    assert ends[0].out.splitlines() == ["2", "1"]


def test_a_dry_run_prints_the_plan_and_starts_nothing(script):
    prog = script("import torch.distributed as dist\ndist.init_process_group()\nraise SystemExit('ran')")
    ended = samestep("run", "-n", 4, "--dry-run", "--max-restarts", 2, prog, "-n", "3")

    assert ended.code == 0
    assert "spawn: 4 workers on this node" in ended.out
    assert f"{prog} -n 3" in ended.out
    assert "up to 2" in ended.out


def test_a_script_that_spawns_is_not_started_by_each_task_of_a_launcher(script, capsys, monkeypatch):
    from samestep.cli.main import run_command

    for name, value in (("RANK", "0"), ("SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "2")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    monkeypatch.setenv("MASTER_PORT", "1234")
    prog = script("import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)")

    assert run_command(["run", str(prog)]) == 2
    assert "starts its own workers" in capsys.readouterr().err


def test_a_task_of_another_launcher_joins(script):
    prog = script(
        """\
        import json, os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        print(json.dumps({"rank": dist.get_rank(), "total": total.item()}))
        """
    )
    port = str(free_port())
    tasks = [
        start(
            "run",
            prog,
            OMPI_COMM_WORLD_RANK=str(rank),
            OMPI_COMM_WORLD_SIZE="2",
            OMPI_COMM_WORLD_LOCAL_RANK=str(rank),
            OMPI_COMM_WORLD_LOCAL_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
        for rank in (0, 1)
    ]
    ended = [finish(task) for task in tasks]

    assert [run.code for run in ended] == [0, 0], "\n".join(run.err for run in ended)
    assert [json.loads(run.out) for run in ended] == [{"rank": r, "total": 2.0} for r in (0, 1)]
    assert "2 workers started by openmpi" in ended[0].err
    assert "workers" not in ended[1].err


def test_workers_that_create_a_group_with_a_store_are_not_silent_copies(script):
    prog = script(
        """\
        import os, torch.distributed as dist
        rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
        store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        dist.barrier()
        dist.destroy_process_group()
        """
    )
    assert commands.samestep("run", "-n", 2, prog).code == 0
