"""Another user of any host neither connects to a command that runs on two nodes nor delays it."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from support.attacks import NOBODY, attacked_on, attacking, await_ports, ports, recorded
from support.commands import finish
from support.systems import program

DELAY_S = 5.0
TWO = ("node0", "node1")
COMMANDS = {
    "doctor": ("doctor", "--json", "--run-folder", "."),
    "bench": ("bench", "all-reduce", "--sizes", "4,1K", "--seconds", 0.1, "--json"),
}

# Rank 1 comes later. It leaves the time of its end, less what it waited for a core: that is not the attack's.
# (srun ends at once or some seconds after its tasks.)
COMMAND = """
import os, sys, time, torch
from pathlib import Path
from samestep.cli.main import main
flag = Path(sys.argv.pop(1))
rank = os.environ.get("SLURM_PROCID") or os.environ["RANK"]
while rank == "1" and not flag.exists():
    time.sleep(0.01)
if (child := os.fork()) == 0:
    main()
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
waited_s = int(Path(f"/proc/{child}/schedstat").read_text().split()[1]) / 1e9
Path(f"{flag}-{rank}").write_text(str(time.time() - waited_s))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def tasks(nodes, slurm, folder, task):
    master = {"MASTER_ADDR": "node0", "MASTER_PORT": "29511", "WORLD_SIZE": "2"}
    return [nodes.start(node, *task, folder=folder, RANK=str(i), **master) for i, node in enumerate(TWO)]


def srun(nodes, slurm, folder, task):
    return [slurm.start("srun", "--nodes=2", *task, folder=folder)]


def found_by(command, out):
    """Return the results of a command without its measurements."""
    result = json.loads(out)
    if command == "bench":
        return [(row["algorithm"], row["bytes"], row["ranks"]) for row in result]
    hurting = [finding["text"] for finding in result["findings"] if finding["hurts"]]
    return [rank["host"] for rank in result["ranks"]], hurting


@pytest.mark.long
@pytest.mark.parametrize("launch", [tasks, srun])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_other_user_connects_to_a_command_of_two_nodes_or_delays_it(
    nodes, slurm, tmp_path, command, launch
):
    program("netns", "setpriv")
    recording = tmp_path / "recorded"

    def run(name, attack):
        """Return what the command finds, how long it takes from the attack on, and its report."""
        before, flag = ports(nodes), tmp_path / name
        task = (sys.executable, "-c", COMMAND, flag, *COMMANDS[command])
        running = launch(nodes, slurm, tmp_path, task)
        found = await_ports(nodes, before, 1, running, rendezvous=launch is srun)
        with attack(found) as report:
            flag.touch()
            ended = [finish(process) for process in running]
        assert "Traceback" not in "".join(done.err for done in ended)
        results = [done.code for done in ended], found_by(command, ended[0].out)
        return results, float(Path(f"{flag}-1").read_text()) - flag.stat().st_mtime, report

    with recorded(nodes, recording, between=TWO):
        alone, usual, _ = run("alone", lambda _: nullcontext())
        with attacked_on(nodes, *TWO) as taken:
            # Node2 gets the names of the hosts only: the ports are guessed.
            attacked, took, report = run(
                "attacked", lambda found: attacking(nodes, *TWO, recording=recording, until=found)
            )

    assert taken
    assert attacked == alone
    assert report["uid"] == NOBODY
    assert max(report["answers"].values()) <= 64, report
    assert took < usual + DELAY_S
