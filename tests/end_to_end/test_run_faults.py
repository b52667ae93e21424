"""``samestep run`` reports a failure once, ends all workers, and leaves no processes and segments."""

import errno
import os
import pty
import signal
import subprocess
import sys
from textwrap import dedent

import pytest

from support import commands
from support.commands import DEADLINE_S, await_end_of, environment, finish, shared_memory
from support.forked_commands import lines, samestep, start

# Each worker prints the processes it consists of: itself, two loader workers and a resource tracker; and
# then trains until it is ended.
ENDLESS = """\
    import os, sys, torch, torch.distributed as dist
    from multiprocessing import resource_tracker, shared_memory
    from torch.utils.data import DataLoader, TensorDataset

    dist.init_process_group("gloo")
    segment = shared_memory.SharedMemory(create=True, size=1 << 16)
    data = TensorDataset(torch.arange(1 << 20))
    batches = iter(DataLoader(data, batch_size=4, num_workers=2))
    next(batches)
    pids = [os.getpid(), resource_tracker._resource_tracker._pid, *(w.pid for w in batches._workers)]
    os.write(1, (" ".join([segment.name, *map(str, pids)]) + "\\n").encode())
    for batch, in batches:
        dist.all_reduce(batch)
    """


@pytest.fixture
def script(tmp_path):
    def write(text):
        file = tmp_path / "prog.py"
        file.write_text(dedent(text))
        return file

    return write


@pytest.fixture
def endless(script, tmp_path):
    """Start a run that does not end by itself; yield it, its workers' processes and its own TMPDIR."""
    own = tmp_path / "tmp"
    own.mkdir()
    process = start("run", "-n", 2, script(ENDLESS), TMPDIR=str(own))
    try:
        said = [line.split() for line in lines(process, 2)]
        pids = [[int(pid) for pid in worker[1:]] for worker in said]
        assert {worker[0] for worker in said} <= shared_memory()
        yield process, pids
        assert await_end_of(pid for worker in pids for pid in worker) == []
        assert (
            shared_memory_of({pid for worker in pids for pid in worker}, {worker[0] for worker in said}) == []
        )
        assert list(own.glob("torchelastic_*")) == []
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def shared_memory_of(pids, names):
    """Return which of the named segments exist, and of those that torch names after a process."""
    prefixes = tuple(f"torch_{pid}_" for pid in pids)
    return sorted(name for name in shared_memory() if name in names or name.startswith(prefixes))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_to_the_launcher_ends_all_processes_of_the_run(endless, number, code):
    process, _ = endless
    process.send_signal(number)
    ended = finish(process)

    assert ended.code == code
    # A loader worker's thread may complain about its parent; the run itself has one thing to say.
    assert "samestep: rank" not in ended.err
    assert f"ended by signal {number:d}" in ended.err


def test_an_interrupt_of_launcher_and_workers_at_once_ends_the_run(endless):
    process, _ = endless
    os.killpg(process.pid, signal.SIGINT)

    assert finish(process).code == 130


def test_workers_end_with_a_launcher_that_is_killed(script):
    # Workers only: what they have started (DataLoader's processes) looks after itself in such a case.
    process = start(
        "run",
        "-n",
        2,
        script("""\
            import os, torch, torch.distributed as dist

            dist.init_process_group("gloo")
            os.write(1, f"{os.getpid()}\\n".encode())
            while True:
                dist.all_reduce(torch.ones(4))
            """),
    )
    pids = [int(line) for line in lines(process, 2)]
    process.kill()

    assert finish(process).code == -signal.SIGKILL
    assert await_end_of(pids) == []


def test_a_killed_worker_ends_the_run(endless):
    process, pids = endless
    os.kill(pids[1][0], signal.SIGKILL)
    ended = finish(process)

    assert ended.code == 137
    assert f"pid {pids[1][0]}) was killed by signal 9 (SIGKILL)" in ended.err
    assert "GLHF" not in ended.err, "the text of the other's lost connection is not news"


def test_an_exception_is_printed_once_from_the_users_first_line(script):
    prog = script(
        """\
        import torch, torch.distributed as dist

        def step():
            raise ValueError("no such step")

        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            step()
        dist.all_reduce(torch.ones(1))
        """
    )
    ended = samestep("run", "-n", 2, prog)
    told = [line.removeprefix("[rank1]: ") for line in ended.err.splitlines()]

    assert ended.code == 1
    begin = told.index("Traceback (most recent call last):")
    assert told[begin + 1] == f'  File "{prog}", line 8, in <module>'
    assert ended.err.count("Traceback") == 1
    assert ended.err.count("no such step") == 2  # the line of the program, and the error
    assert told[-1].startswith("samestep: rank 1 of 2 ")
    assert "ValueError" in told[-1]


def test_the_others_write_what_they_have_buffered_before_they_are_stopped(script, tmp_path):
    log = tmp_path / "log.txt"
    prog = script(
        f"""\
        import time, torch.distributed as dist

        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 1:
            store.wait(["printed"])
            raise ValueError("alone")
        log = open({str(log)!r}, "w")
        log.write("in a file")
        print("a line")
        store.set("printed", "")
        time.sleep(600)
        """
    )
    ended = samestep("run", "-n", 2, prog)

    assert ended.code == 1
    assert ended.out == "a line\n"
    assert log.read_text() == "in a file"


def test_a_serial_script_that_fails_ends_its_threads_and_exit_functions(script, tmp_path):
    """Only this finds a checkpoint that a thread has half written, or a failure reported after such waits."""
    output = tmp_path / "output.txt"
    output.touch()
    prog = script(
        f"""\
        import atexit, pathlib, threading, time
        output = pathlib.Path({str(output)!r})

        def write():
            while "ValueError: alone" not in output.read_text():
                time.sleep(0.01)
            atexit.register(output.with_name("left").touch)

        threading.Thread(target=write).start()
        raise ValueError("alone")
        """
    )
    assert start("run", "-n", 2, prog, into=output).wait(DEADLINE_S) == 1
    assert (tmp_path / "left").exists()


def test_all_workers_restart_after_one_was_killed(script):
    prog = script(
        """\
        import os, signal, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        total = torch.ones(1)
        dist.all_reduce(total)
        if attempt == "0" and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(total)
        os.write(1, f"{attempt} {dist.get_rank()} {total.item()}\\n".encode())
        """
    )
    ended = samestep("run", "-n", 2, "--max-restarts", 1, prog)

    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == ["1 0 4.0", "1 1 4.0"]
    assert "SIGKILL" in ended.err


def test_the_number_of_restarts_is_limited(script):
    prog = script("import torch.distributed as dist\ndist.init_process_group('gloo')\nraise SystemExit(5)\n")
    ended = samestep("run", "-n", 2, "--max-restarts", 1, prog)

    assert ended.code == 5
    assert ended.err.count("exit code 5") == 2


def test_a_failure_repeated_at_the_same_step_ends_the_restarts_and_its_path_is_named(script, tmp_path):
    prog = script(
        """
        import errno, os
        from samestep.base.worker_records import record_step
        os.write(1, b"started\\n")
        record_step(3)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/full/weights.pt")
        """
    )
    ended = samestep("run", "-n", 1, "--mode", "native", "--max-restarts", 5, prog)

    assert ended.code == 1
    assert ended.out.splitlines() == ["started"] * 2
    last = ended.err.splitlines()[-1]
    assert "/full/weights.pt" in last
    assert os.strerror(errno.ENOSPC) in last


def test_spawn_returns_results_and_raises_the_first_failure(tmp_path):
    file = tmp_path / "spawning.py"
    file.write_text(dedent(SPAWNING))
    ended = commands.samestep("run", file)

    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [
        "[(0, 21.0), (1, 21.0)]",
        "WorkerFailed 1 rank 1",
        "threads [0, 1]",
        "again",
    ]
    assert "Traceback" not in ended.err


def test_fresh_workers_have_the_flags_of_the_interpreter(tmp_path):
    file = tmp_path / "spawning.py"
    file.write_text(
        dedent("""\
        import sys, threading, samestep

        def flags(world):
            return sys.flags.optimize, sys.flags.dev_mode

        if __name__ == "__main__":
            stop = threading.Event()
            threading.Thread(target=stop.wait).start()  # this process cannot be forked
            print(samestep.spawn(flags, 1))
            stop.set()
        """)
    )
    ended = subprocess.run(
        [sys.executable, "-O", "-X", "dev", file],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )

    assert ended.stdout == "[(1, True)]\n", ended.stderr


SPAWNING = """\
    import sys, threading, torch, samestep

    def total(world, start):
        torch.randn(300, 300) @ torch.randn(300, 300)
        return world.place.rank, world.sum(start + world.place.rank)

    def fails(world):
        if world.place.rank == 1:
            raise ValueError("boom")
        world.barrier()

    if __name__ == "__main__":
        # Leaves OpenMP's threads waiting, which a forked child must not count on.
        torch.set_num_threads(2)
        torch.randn(500, 500) @ torch.randn(500, 500)
        base = 10
        print(samestep.spawn(lambda world, start: total(world, start + base), 2, 0))
        try:
            samestep.spawn(fails, 2)
        except samestep.Error as error:
            text = str(error)
            assert "ValueError: boom" in text and "local/spawn.py" not in text, text
            print(type(error).__name__, error.exit_code, text[:6])
        stop = threading.Event()
        waiting = threading.Thread(target=stop.wait)
        waiting.start()
        main = sys.modules["__main__"]
        file = main.__dict__.pop("__file__")
        print("threads", samestep.spawn(lambda world: world.place.rank, 2))
        main.__file__ = file
        try:
            samestep.spawn(lambda world: None, 2)
        except samestep.Error as error:
            assert "pickled" in str(error)
        stop.set()
        waiting.join()
        print("again")
"""


def test_wrong_input_to_samestep_in_a_program_is_one_line_that_names_the_calling_line(script):
    file = script("""\
        import samestep

        with samestep.join(device="nope") as world:
            pass
        """)

    ended = samestep("run", file)

    said = ended.err.splitlines()[-2]  # the last one names the rank
    assert ended.code == 2
    assert said.startswith("samestep: error: device=nope was asked for")
    assert said.endswith(f"({file}:3)")
    assert "Traceback" not in ended.err


ADOPTING = """\
    import os, psutil, subprocess
    from samestep.launch.local.orphans import adopt_orphans, end_all

    adopt_orphans()
    said = subprocess.run(["sh", "-c", "sleep 60 >&2 & echo $!"], stdout=subprocess.PIPE, check=True).stdout
    assert psutil.Process(int(said)).ppid() == os.getpid()
    if (pid := os.fork()) == 0:  # as a worker is forked from the launcher
        own = subprocess.Popen(["sleep", "60"])
        end_all([], ended=set())
        spared = own.poll() is None
        own.kill()
        os._exit(0 if spared else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "a worker ended its own child"
    end_all([], ended=set())
    assert not psutil.pid_exists(int(said))
    """


def test_orphans_are_ended_by_the_process_that_adopted_them_and_not_by_its_forks(script):
    ended = subprocess.run([sys.executable, script(ADOPTING)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_worker_inherits_no_files_and_its_forks_and_orphans_are_reaped(script, tmp_path):
    prog = script(
        """\
        import os, psutil, subprocess, sys, time
        held = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                held += [os.readlink(f"/proc/self/fd/{fd}")] if int(fd) > 2 else []
            except FileNotFoundError:  # the listing's own
                pass
        own = [file for file in held if file.endswith((f"/{os.getpid()}.events", f"/{os.getpid()}.stacks"))]
        kinds = sorted(file.split(":")[0] for file in held if file not in own)
        assert len(own) == 2, f"the worker's record: {held}"
        assert kinds == ["/memfd", "pipe", "pipe", "pipe"], f"too many: {held}"

        import torch.distributed as dist
        dist.init_process_group("gloo")
        if (pid := os.fork()) == 0:
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        said = subprocess.run(["sh", "-c", "true >&2 & echo $!"], stdout=subprocess.PIPE, check=True).stdout
        deadline = time.monotonic() + 20
        while psutil.pid_exists(int(said)):
            assert time.monotonic() < deadline, "the orphan stays a zombie"
            time.sleep(0.02)
        dist.barrier()
        print("alone")
        """
    )
    ended = commands.samestep("run", "-n", 2, "--tee", 3, "--log-dir", tmp_path / "logs", prog)

    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == ["[rank0]: alone", "[rank1]: alone"]


def test_an_error_is_reported_even_if_the_excepthook_does_not_return(script):
    prog = script(
        """\
        import os, sys, torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            sys.excepthook = lambda *error: os._exit(3)
            raise ValueError("the cause")
        dist.barrier()
        """
    )
    ended = samestep("run", "-n", 2, prog)

    assert ended.code == 3
    assert ended.err.count("ValueError: the cause") == 1
    assert "rank 1 of 2" in ended.err.splitlines()[-1]
    assert "failed with ValueError (exit code 3)" in ended.err


def test_a_worker_that_a_thread_keeps_from_exiting_gets_sigterm(script):
    prog = script(
        """\
        import os, pathlib, signal, threading, time, torch.distributed as dist
        dist.init_process_group("gloo")
        over = pathlib.Path(__file__).with_suffix(".over")

        def linger():
            while threading.main_thread().is_alive():
                time.sleep(0.01)
            over.touch()  # the program has ended and said so
            threading.Event().wait()

        def asked(*_):
            os.write(1, b"asked")
            os._exit(0)

        if dist.get_rank() == 1:
            signal.signal(signal.SIGTERM, asked)
            threading.Thread(target=linger).start()
        else:
            while not over.exists():
                time.sleep(0.01)
            raise SystemExit(5)
        """
    )
    ended = samestep("run", "-n", 2, prog)

    assert (ended.code, ended.out) == (5, "asked"), ended.err


SPAWNING_WITHOUT_PIDFD = """\
    import os, samestep

    def forbidden(pid, flags=0):
        raise PermissionError(1, "Operation not permitted")

    os.pidfd_open = forbidden

    class Fussy:
        def __reduce__(self):
            return int, ("not a number",)

    def result(world):
        return Fussy() if world.place.rank == 1 else None

    if __name__ == "__main__":
        print(samestep.spawn(lambda world: world.place.rank, 2))
        try:
            samestep.spawn(result, 2)
        except samestep.Error as error:
            print(error)
"""


def test_workers_are_awaited_without_pidfd_open(script):
    command = [sys.executable, script(SPAWNING_WITHOUT_PIDFD)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    lines = ended.stdout.splitlines()

    assert ended.returncode == 0, ended.stderr
    assert lines[0] == "[0, 1]"
    assert lines[1].startswith("rank 1 of 2 ")
    assert lines[2].startswith("a worker's result of type Fussy cannot be unpickled: ValueError")


def test_a_closed_stdout_is_no_error(script):
    prog = script(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\nprint('unheard')\ndist.barrier()"
    )
    run = [sys.executable, "-m", "samestep", "run", "-n", "2", "--tee", "1", str(prog)]
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *run]
    ended = subprocess.run(closed, capture_output=True, text=True, check=False, env=environment())

    assert ended.returncode == 0, ended.stderr
    assert (ended.stdout, ended.stderr.count("Traceback")) == ("", 0)


# Makes the terminal named first its own, as a shell's is, and becomes the command.
AT_THE_TERMINAL = "import os, sys; os.open(sys.argv[1], os.O_RDWR); os.execv(sys.argv[2], sys.argv[2:])"

# Rank 0 takes its time over Ctrl-C and counts the signals; rank 1 just ends.
INTERRUPTED = """\
    import os, signal, time, torch.distributed as dist
    signals = []
    if os.environ["RANK"] == "0":
        signal.signal(signal.SIGINT, lambda *_: signals.append(1))  # whichever thread the system chooses
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # rank 1 has ended by then, which ends the others
    dist.init_process_group("gloo")
    os.write(1, b"ready\\n")
    while not signals:
        time.sleep(0.01)
    time.sleep(0.5)
    os.write(1, b"signaled twice" if len(signals) > 1 else b"signaled once")
    os._exit(130)
    """


@pytest.fixture
def at_a_terminal(script, request):
    """Start a run of two workers in the foreground of a terminal; yield it and the keyboard."""
    keyboard, terminal = pty.openpty()
    command = [sys.executable, "-c", AT_THE_TERMINAL, os.ttyname(terminal)]
    command += [sys.executable, "-m", "samestep", "run", "-n", "2", str(script(INTERRUPTED))]
    process = subprocess.Popen(
        command,
        stdin=terminal if request.param == "stdin" else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    assert commands.lines(process, 2) == ["ready", "ready"]
    yield process, keyboard
    os.close(keyboard)
    os.close(terminal)


@pytest.mark.parametrize("at_a_terminal", ["stdin elsewhere"], indirect=True)
def test_ctrl_c_at_a_terminal_reaches_each_worker_once(at_a_terminal):
    process, keyboard = at_a_terminal
    os.write(keyboard, b"\x03")
    ended = finish(process)

    assert (ended.code, ended.out) == (130, "signaled once"), ended.err


@pytest.mark.parametrize("at_a_terminal", ["stdin"], indirect=True)
def test_an_interrupt_of_the_launcher_alone_reaches_its_workers(at_a_terminal):
    process, _ = at_a_terminal
    process.send_signal(signal.SIGINT)
    ended = finish(process)

    assert (ended.code, ended.out) == (130, "signaled once"), ended.err
