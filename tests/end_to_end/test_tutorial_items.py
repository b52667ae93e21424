"""Every command in the table of the tutorials' items prints what the table shows."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from samestep_lab.exercises.starters import SOLUTIONS
from support.commands import Ended, environment
from support.forked_commands import samestep, scale
from support.tiers import mostly_long
from support.tutorial_items import commands, prints

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = "--synthetic --subset 96 --batch-size 24 --norm group --lr 0.005"
INTERPRETERS = {
    "python": [],
    "torchrun": ["-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"],
}
COMMANDS = commands()
SHORT = (
    "samestep lab hello -n 2",
    "samestep train digits -n 2 --epochs 1 --evaluate-first --print-every 30 --per-rank",
    "samestep lab grade SOLUTIONS/broadcast.py --ranks 2,3",
    "torchrun --nproc-per-node 2 examples/tutorial/ddp.py SMALL",
)
DEADLINE_S = 900.0


@pytest.mark.timeout(960)  # some train a dozen times
@pytest.mark.parametrize("command", mostly_long(COMMANDS, SHORT))
def test_the_command_prints_the_lines_of_the_table(command, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)

    done = run(shlex.split(command.replace("SMALL", SMALL).replace("SOLUTIONS", str(SOLUTIONS))))

    assert done.code == 0, done.err
    output = f"{done.out}\n{done.err}"
    assert not [line for line in COMMANDS[command] if not prints(output, line)], output


def run(words: list[str]) -> Ended:
    program, *arguments = words
    if program == "samestep" and arguments[0] == "scale":
        return scale(*arguments[1:], deadline_s=DEADLINE_S)
    if program == "samestep":
        return samestep(*arguments, deadline_s=DEADLINE_S)
    started = [sys.executable, *INTERPRETERS[program], *arguments]
    done = subprocess.run(
        started, capture_output=True, text=True, check=False, timeout=DEADLINE_S, env=environment()
    )
    return Ended(done.returncode, done.stdout, done.stderr)
