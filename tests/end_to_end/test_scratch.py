"""`samestep run --scratch` leaves files unchanged, and the script reads what it has written."""

from pathlib import Path

import pytest

from support.commands import DEADLINE_S, finish
from support.forked_commands import samestep, start

SERIAL = """
import torch

seen = open("steps.txt").read()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).mean().backward()
    optimizer.step()
    with open("steps.txt", "a") as log:
        log.write(f"{step}")
torch.save(model.state_dict(), "model.pt")
model.load_state_dict(torch.load("model.pt"))
print(f"read {seen} and then {open('steps.txt').read()}\\n", end="")
"""
NATIVE = f"""
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    os.makedirs("of_all", exist_ok=True)
    {SERIAL.replace(chr(10), chr(10) + "    ")}
dist.barrier()
torch.load("model.pt")
with open(f"of_all/{{dist.get_rank()}}", "w") as file:
    file.write("here")
dist.barrier()
assert sorted(os.listdir("of_all")) == ["0", "1"]
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("script", "workers"), [(SERIAL, 1), (SERIAL, 2), (NATIVE, 2)])
def test_files_are_unchanged_and_the_script_reads_back_its_writes(tmp_path, monkeypatch, script, workers):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(script)
    Path("steps.txt").write_text("old ")
    ended = samestep("run", "-n", workers, "--scratch=elsewhere", "train.py")

    assert ended.code == 0, ended.err
    assert "read old  and then old 0123" in ended.out
    assert Path("steps.txt").read_text() == "old "
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "steps.txt", "train.py"]


def test_the_option_is_refused_for_an_executable():
    ended = samestep("run", "--scratch=elsewhere", "--no-python", "true")

    assert ended.code == 2
    assert "--scratch " in ended.err


@pytest.mark.long
def test_runs_that_measure_the_number_of_workers_leave_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SERIAL.replace("range(4)", "range(40)"))
    Path("steps.txt").write_text("old ")
    ended = finish(start("run", "-n", "auto", "train.py"), deadline_s=5 * DEADLINE_S)  # five runs

    assert ended.code == 0, ended.err
    assert ended.out.count("and then") == 1
    steps = "".join(map(str, range(40)))
    assert Path("steps.txt").read_text() == f"old {steps}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "steps.txt", "train.py"]
    assert ended.err.count("workers x threads") == 1
