"""Serial scripts with their own threads and processes have the result of one worker, or a named error."""

import pytest

from support.forked_commands import samestep

TRAINING = """
import asyncio, os, signal, threading, time, torch
from concurrent.futures import ThreadPoolExecutor
from torch import nn

os.chdir(os.path.dirname(__file__))
torch.manual_seed(0)
x, y = torch.randn(64, 8).double(), torch.randn(64, 3).double()
model = nn.Linear(8, 3).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    for start in range(0, 64, 16):
        loss = (model(x[start : start + 16]) - y[start : start + 16]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss
"""


def run(tmp_path, text):
    script = tmp_path / "train.py"
    script.write_text(TRAINING + text)
    return samestep("run", "-n", 2, script)


AFTER_THE_LAST_LINE = """
print(f"{train():.9f}")
open("old.txt", "w").write("old")

def late(number):
    time.sleep(0.3)
    for name in (f"late{number}.txt", "old.txt"):
        with open(name, "a") as file:
            file.write("+")
    print("late", number)

threading.Thread(target=late, args=(0,)).start()
pool = ThreadPoolExecutor(1)
for number in (1, 2):
    pool.submit(late, number)
END
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise SystemExit(7)", 7), ("raise KeyError", 1)])
def test_threads_that_the_script_has_not_joined_write_once(tmp_path, end, code):
    ended = run(tmp_path, AFTER_THE_LAST_LINE.replace("END", end))

    assert ended.code == code
    if code != 1:
        assert sorted(ended.out.splitlines()[1:]) == ["late 0", "late 1", "late 2"]
    for number in range(3):
        assert (tmp_path / f"late{number}.txt").read_text() == "+"
    assert (tmp_path / "old.txt").read_text() == "old+++"


IN_A_THREAD = """
thread = threading.Thread(target=train)
thread.start()
thread.join()
open("after", "w")
"""

IN_TWO_THREADS = """
def other():
    model = nn.Linear(8, 3).double()
    for _ in range(20):
        model(x)

async def main():
    await asyncio.gather(asyncio.to_thread(other), asyncio.to_thread(other))

asyncio.run(main())
"""

INPUT = """
threading.Thread(target=input, daemon=True).start()
time.sleep(60)
"""

LOOP_HANDLER = """
async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (IN_A_THREAD, "another thread (Thread-"),
        (IN_TWO_THREADS, "two threads"),
        (INPUT, "input()"),
        (LOOP_HANDLER, "add_signal_handler"),
    ],
    ids=["in-a-thread", "in-two-threads", "input", "loop-handler"],
)
def test_unsupported_uses_of_threads_on_several_workers_are_refused_by_name(tmp_path, text, named):
    ended = run(tmp_path, text)

    assert ended.code == 2
    assert named in ended.err
    assert not (tmp_path / "after").exists()
