"""A run that ends abnormally leaves nothing behind, once the next command has started."""

import pytest

from support.abnormal_ends import Case, Left, end

CASES = [
    Case("serial", "SIGKILL", "launcher"),
    Case("native", "SIGKILL", "all"),
    Case("serial", "fork"),
    Case("serial", "close"),
    Case("verify", "SIGTERM", "launcher"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_left(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    assert end(case, tmp_path) == Left([], [], [])
