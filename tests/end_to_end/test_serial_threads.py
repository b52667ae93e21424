"""Threads that a serial script has not joined go on after its last line, as under Python itself."""

import pytest

from support.commands import finish
from support.forked_commands import samestep, start_script

SCRIPT = """
import os, sys, threading, time, torch
from concurrent.futures import ThreadPoolExecutor

os.chdir(os.path.dirname(__file__))
torch.manual_seed(0)
x = torch.randn(64, 8).double()
model = torch.nn.Linear(8, 3).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    for batch in x.split(16):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
    return f"{loss:.9f}"

print(train())
open("old.txt", "w").write("old")

def late(number):
    time.sleep(0.3)
    for name in (f"late{number}.txt", "old.txt"):
        with open(name, "a") as file:
            file.write("+")
    result = train() if number else ""
    sys.stdout.write(f"late {number} {result}\\n")  # at once: print writes the line's end by itself

threading.Thread(target=late, args=(0,)).start()
pool = ThreadPoolExecutor(1)
for number in (1, 2):
    pool.submit(late, number)
END
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise SystemExit(7)", 7), ("raise KeyError", 1)])
def test_threads_that_the_script_has_not_joined_train_and_write_once(tmp_path, end, code):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("END", end))
    plain = finish(start_script(script))

    ended = samestep("run", "-n", 2, "--short-calls", "split", script)

    assert plain.code == ended.code == code
    assert sorted(ended.out.splitlines()) == sorted(plain.out.splitlines())
    for number in range(3):
        assert (tmp_path / f"late{number}.txt").read_text() == "++"  # one of each run
    assert (tmp_path / "old.txt").read_text() == "old+++"
    assert "4 calls split" in ended.err
