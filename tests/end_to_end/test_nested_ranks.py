"""A serial script that starts further ranks itself is refused."""

import pytest

from support.forked_commands import samestep

SCRIPT = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", "0"], env={**os.environ, "NAME": "5"})
print("started")
"""


@pytest.mark.parametrize(("name", "is_refused"), [("RANK", True), ("COLOR", False)])
def test_a_child_process_with_a_rank_is_refused(tmp_path, name, is_refused):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("NAME", name))
    ended = samestep("run", "-n", 2, script)

    assert ended.code == 2  # the other one trains nothing
    assert ("started" not in ended.out) == is_refused
