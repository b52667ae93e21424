"""Commands that tests start under launchers, and readers of the places that they print."""

import sys
from pathlib import Path

RUN = (sys.executable, "-m", "samestep", "run")
"""The command, independent of the ranks' PATH."""

PLACE = (
    *("--no-python", "sh", "-c"),
    """
    place="$LOCAL_RANK of $LOCAL_WORLD_SIZE on node $GROUP_RANK of $GROUP_WORLD_SIZE"
    echo "rank $RANK of $WORLD_SIZE, $place: $(hostname) meets at $MASTER_ADDR:$MASTER_PORT"
    """,
)
"""An executable that prints a worker's place from its environment, without loading torch."""

JOIN = """
import samestep
with samestep.join(device="cpu") as world:
    line = f"{world.place.describe()} {int(world.sum(world.place.rank + 1))}\\n"
    print(line, end="", flush=True)  # in one write, which those of other ranks cannot split
"""
"""A script that joins its peers, and adds up their ranks, counted from 1."""

DIES_ONCE = """
import os, signal, sys
from pathlib import Path
import samestep

with samestep.join(timeout_s=60) as world:
    world.barrier()
    if world.place.rank == 1 and not (died := Path(sys.argv[1])).exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    total = world.sum(world.place.rank)
world.print(f"{total} after a restart" if Path(sys.argv[1]).exists() else "no rank died")
"""
"""A joined script whose rank 1 is killed at its first start, when it creates the file of its argument."""

MESSAGES = Path(__file__).parents[2] / "examples" / "message_passing.py"
OUTPUT_OF_TWO = ["2 ranks: down the line 3, round the ring 3", "all of them know it: True"]
"""The output of two ranks, printed once."""


def places(out: str) -> tuple[list[str], set[str]]:
    """Return the places that the workers of `PLACE` printed, in rank order, and the addresses."""
    lines = sorted(line.partition(" meets at ") for line in out.splitlines() if line.startswith("rank "))
    return [place for place, _, _ in lines], {point for _, _, point in lines}


def placed(*hosts: str) -> list[str]:
    """Return the places of workers that were started on `hosts`, one name for each rank."""
    nodes = list(dict.fromkeys(hosts))
    return [
        f"rank {rank} of {len(hosts)}, {hosts[:rank].count(host)} of {hosts.count(host)} on node "
        f"{nodes.index(host)} of {len(nodes)}: {host}"
        for rank, host in enumerate(hosts)
    ]
