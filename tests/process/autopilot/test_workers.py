"""`samestep.workers` in a process of the user's own, whose helpers are forks of another interpreter."""

import subprocess
import sys
from pathlib import Path

import samestep

SCRIPT = f"""
import sys
sys.path.insert(0, {str(Path(samestep.__file__).parents[1])!r})
import samestep, torch
model = torch.nn.Linear(4, 2)
with samestep.workers(2):
    for _ in range(3):
        model(torch.ones(8, 4)).sum().backward()
"""


def test_helpers_find_modules_where_the_process_finds_them(tmp_path):
    """They looked in the present folder, and not in those that the process had added."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "socket.py").write_text("raise SystemExit('another socket')")
    command = [sys.executable, str(tmp_path / "script.py")]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "elsewhere")
    assert ended.returncode == 0, ended.stderr
    assert "3 calls split" in ended.stderr, ended.stderr
