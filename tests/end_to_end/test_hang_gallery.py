"""The last line of ``samestep run`` names rank, collective and line of each hang and crash of the gallery."""

import pytest

from gallery_hangs.manifest import SCRIPTS
from support.forked_commands import samestep
from support.hang_reports import read_report


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name.removesuffix(".py"))
def test_the_last_line_names_rank_collective_and_line(script):
    ended = samestep("run", "-n", 2, "--mode", "native", "--hang-timeout", 2, script.path)
    last = [line for line in ended.err.splitlines() if line.startswith("samestep: ")][-1]

    assert ended.code == script.code, ended.err
    assert read_report(last).differences(script) == [], last
