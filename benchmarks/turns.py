"""Commands that take turns: each runs for some seconds while the others are stopped.

A machine's speed drifts over minutes, and runs one after another then tell more of the drift than of the
commands. Turns of seconds spread it over all of them alike.
"""

import contextlib
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

import psutil


def _signal_all(process: subprocess.Popen[str], what: signal.Signals) -> None:
    """Send a signal to a process and to all that come from it, the first one first."""
    try:
        started = psutil.Process(process.pid)
        for one in (started, *started.children(recursive=True)):
            one.send_signal(what)
    except psutil.NoSuchProcess:
        pass


def _two_files(files: contextlib.ExitStack) -> tuple[IO[str], IO[str]]:
    """Return files for what a process prints, and for what it complains of."""
    return files.enter_context(tempfile.TemporaryFile("w+")), files.enter_context(
        tempfile.TemporaryFile("w+")
    )


def _end(running: Mapping[str, subprocess.Popen[str]]) -> None:
    """End processes, stopped ones too."""
    for process in running.values():
        _signal_all(process, signal.SIGTERM)
        _signal_all(process, signal.SIGCONT)
        process.wait()


def in_turns(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], turn_s: float
) -> dict[str, str]:
    """Run commands to their ends, one at a time, in turns of ``turn_s`` seconds.

    A step that is under way when a turn ends takes as long as the turns of all others: medians over ten or
    more steps a turn do not see it.

    Returns:
        What each printed on its standard output.

    Raises:
        RuntimeError: a command failed, with what it wrote.
    """
    running: dict[str, subprocess.Popen[str]] = {}
    with contextlib.ExitStack() as files:
        outputs = {name: _two_files(files) for name in commands}
        files.callback(_end, running)
        for name, command in commands.items():
            out, err = outputs[name]
            running[name] = subprocess.Popen(command, stdout=out, stderr=err, text=True, env=environment)
            _signal_all(running[name], signal.SIGSTOP)
        while running:
            for name, process in list(running.items()):
                _signal_all(process, signal.SIGCONT)
                try:
                    process.wait(turn_s)
                    del running[name]
                except subprocess.TimeoutExpired:
                    _signal_all(process, signal.SIGSTOP)
                    continue
                if process.returncode:
                    outputs[name][1].seek(0)
                    raise RuntimeError(f"{name} failed:\n{outputs[name][1].read()}")
        for out, _ in outputs.values():
            out.seek(0)
        return {name: out.read() for name, (out, _) in outputs.items()}
