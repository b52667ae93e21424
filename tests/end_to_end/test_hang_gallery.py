"""The last line of ``samestep run`` names rank, collective and line of each hang and crash of the gallery."""

import pytest

from gallery_hangs.manifest import SCRIPTS
from support.forked_commands import samestep
from support.hang_reports import read_report
from support.tiers import mostly_long, stem

SHORT = (
    *("deadlocked_threads", "exits_3", "forward_raises", "killed", "order_differs", "rank_0_twice"),
    *("recv_without_send", "uneven_batches"),
)
"""A script of each kind of end, and of each way to wait."""


@pytest.mark.parametrize("script", mostly_long(SCRIPTS, SHORT, stem))
def test_the_last_line_names_rank_collective_and_line(script):
    ended = samestep("run", "-n", 2, "--mode", "native", "--hang-timeout", 2, script.path)
    last = [line for line in ended.err.splitlines() if line.startswith("samestep: ")][-1]

    assert ended.code == script.code, ended.err
    assert read_report(last).differences(script) == [], last
