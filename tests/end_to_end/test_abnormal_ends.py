"""After a run that ended abnormally, the next command deletes its processes, segments and files."""

import pytest

from support.abnormal_ends import Case, Remains, end
from support.tiers import mostly_long

CASES = [
    Case("serial", "SIGKILL", "launcher"),
    Case("native", "SIGKILL", "all"),
    Case("serial", "fork"),
    Case("serial", "close"),
    Case("verify", "SIGTERM", "launcher"),
]


@pytest.mark.parametrize("case", mostly_long(CASES, ("serial SIGKILL launcher", "verify SIGTERM launcher")))
def test_the_next_command_deletes_all_processes_segments_and_files(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    assert end(case, tmp_path) == Remains([], [], [])
