"""Every command in the table of the tutorials' items prints what the table shows."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from samestep.lab.exercises import SOLUTIONS
from support.commands import environment
from support.tutorial_items import commands, prints

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = "--synthetic --subset 96 --batch-size 24 --norm group --lr 0.005"
PROGRAMS = {
    "samestep": ["-m", "samestep"],
    "python": [],
    "torchrun": ["-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"],
}
COMMANDS = commands()


@pytest.mark.timeout(960)  # some train a dozen times
@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_prints_the_lines_of_the_table(command, tmp_path):
    (tmp_path / "examples").symlink_to(EXAMPLES)
    program, *words = shlex.split(command.replace("SMALL", SMALL).replace("SOLUTIONS", str(SOLUTIONS)))

    done = subprocess.run(
        [sys.executable, *PROGRAMS[program], *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        cwd=tmp_path,
        env=environment(),
    )

    assert done.returncode == 0, done.stderr
    output = f"{done.stdout}\n{done.stderr}"
    assert not [line for line in COMMANDS[command] if not prints(output, line)], output
