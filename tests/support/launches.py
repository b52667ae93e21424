"""What tests start under launchers, and how it tells its place."""

import sys
from pathlib import Path

RUN = (sys.executable, "-m", "samestep", "run")
"""The command, as ranks are to find it whatever their PATH is."""

TELL = (
    *("--no-python", "sh", "-c"),
    """
    place="$LOCAL_RANK of $LOCAL_WORLD_SIZE on node $GROUP_RANK of $GROUP_WORLD_SIZE"
    echo "rank $RANK of $WORLD_SIZE, $place: $(hostname) meets at $MASTER_ADDR:$MASTER_PORT"
    """,
)
"""An executable that tells what a worker finds in its environment; torch is not loaded for it."""

JOIN = """
import samestep
with samestep.join(device="cpu") as world:
    line = f"{world.place.describe()} {int(world.sum(world.place.rank + 1))}\\n"
    print(line, end="", flush=True)  # in one write, which those of other ranks cannot part
"""
"""A script that joins its peers, and adds up their ranks, counted from 1."""

MESSAGES = Path(__file__).parents[2] / "examples" / "message_passing.py"
SAID_BY_TWO = ["2 ranks: down the line 3, round the ring 3", "all of them know it: True"]
"""What two ranks print of it, once."""


def places(out: str) -> tuple[list[str], set[str]]:
    """Return what each worker of `TELL` said of its place, in rank order, and where all of them meet."""
    lines = sorted(line.partition(" meets at ") for line in out.splitlines() if line.startswith("rank "))
    return [place for place, _, _ in lines], {point for _, _, point in lines}


def placed(*hosts: str) -> list[str]:
    """Return what the workers say that were started on `hosts`, one name for each rank."""
    nodes = list(dict.fromkeys(hosts))
    return [
        f"rank {rank} of {len(hosts)}, {hosts[:rank].count(host)} of {hosts.count(host)} on node "
        f"{nodes.index(host)} of {len(nodes)}: {host}"
        for rank, host in enumerate(hosts)
    ]
