"""One node's failure for good, or a signal to one launcher, ends the run on all nodes, within seconds."""

import signal
import sys
import time

import pytest

from support.tiers import long_param

PROMPT_S = 20.0
"""Of which most is what a loaded machine takes to tell of an end."""
BACKENDS = {
    "static": lambda rank: ("--node-rank", rank, "--master-addr", "node0", "--master-port", 29500),
    "c10d": lambda rank: (
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29500"),
        *("--rdzv-conf", f"is_host={int(rank == 0)}"),
    ),
}
# The rank on the node that fails waits for the other to be where it is to be.
PROGRAM = """
echo "up $RANK" >> "$1/up"
if [ "$GROUP_RANK" = "$2" ]; then
    while [ ! -e "$1/go" ]; do sleep 0.1; done
    exit 7
fi
if [ "$3" = running ]; then exec sleep 100; fi
"""


class Run:
    """Two launchers, with one worker each."""

    def __init__(self, nodes, folder, backend, *, failing, other):
        self.folder = folder
        (folder / "up").touch()
        self.launchers = [
            nodes.start(
                f"node{rank}",
                *(sys.executable, "-m", "samestep", "run", "--nnodes", 2, "--nproc-per-node", 1),
                *BACKENDS[backend](rank),
                *("--no-python", "sh", "-c", PROGRAM, "sh", folder, failing, other),
            )
            for rank in range(2)
        ]

    def await_up(self):
        deadline = time.monotonic() + 60
        while (self.folder / "up").read_text().count("up") < 2:
            assert time.monotonic() < deadline
            assert all(one.poll() is None for one in self.launchers), [one.poll() for one in self.launchers]
            time.sleep(0.05)
        time.sleep(1)  # a worker that has said so may end

    def end(self):
        began = time.monotonic()
        said = [one.communicate(timeout=60)[1] for one in self.launchers]
        assert time.monotonic() - began < PROMPT_S
        return [one.returncode for one in self.launchers], said


@pytest.mark.parametrize(
    ("backend", "failing", "other"),
    [long_param("static", 1, "ended"), ("static", 0, "running"), long_param("c10d", 0, "ended")],
)
def test_a_failure_on_one_node_ends_the_other_and_is_named_there(nodes, tmp_path, backend, failing, other):
    run = Run(nodes, tmp_path, backend, failing=failing, other=other)
    run.await_up()
    (tmp_path / "go").touch()
    codes, said = run.end()
    assert codes == [7, 7], said
    words = said[0] + said[1]
    assert "exit code 7" in said[0], words
    assert "exit code 7" in said[1], words


@pytest.mark.parametrize(("backend", "signalled"), [long_param("static", 0), ("c10d", 1)])
def test_a_signal_to_one_launcher_ends_all_nodes(nodes, tmp_path, backend, signalled):
    run = Run(nodes, tmp_path, backend, failing=1, other="ended" if signalled == 0 else "running")
    run.await_up()
    run.launchers[signalled].send_signal(signal.SIGTERM)
    codes, said = run.end()
    assert codes == [128 + signal.SIGTERM] * 2, said
    assert "SIGTERM" in said[1 - signalled]
