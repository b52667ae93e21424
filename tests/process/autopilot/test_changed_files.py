"""Ranks that change and list the same files at different times get the results of a serial run."""

import ast
import json
import os
import random

import pytest

from support.file_sequences import lay_out, tree, without_order
from support.script_runner import run_script

SCRIPT = '''
import json
import os
import random
import time

import torch

from support.file_sequences import Program, Switch

class Pace(random.Random):
    """Its numbers differ between the ranks, as their speed does."""

pace = Pace()
pace.seed(os.getpid())
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
program = Program(Switch(), None, os.getcwd(), [tuple(one) for one in json.load(open("operations.json"))])
step = 0
while program.step():
    if step % 20 == 0:
        optimizer.zero_grad()
        model(torch.ones(8, 3)).mean().backward()
        optimizer.step()
    step += 1
    time.sleep(pace.choice([0, 0, 0, 0.002, 0.01]))
    print(repr(program.results[-1]))
program.close()
'''
PATHS = ["a", "b", "d", "e", "d/a", "d/b", "d/s", "e/a", "l", "l/a", "e/s/a"]
FOLDERS = ["", "d", "e", "l"]


def drawn(seed, count=120):
    """Return a sequence of operations."""
    chance = random.Random(seed)
    path = lambda: chance.choice(PATHS)  # noqa: E731
    text = lambda: chance.choice(["1", "22\n", "333\n"])  # noqa: E731
    kinds = [
        *(lambda name=name: (name, path(), text()) for name in ("write", "append", "append", "patch", "raw")),
        *(lambda name=name: (name, path(), text()) for name in ("replace_by_new", "make_new", "tar")),
        *(lambda name=name: (name, path()) for name in ("read", "count", "ask", "read", "rewrite", "remove")),
        *(lambda name=name: (name, path()) for name in ("mkdir", "rmtree", "makedirs", "rmdir")),
        *(lambda name=name: (name, path(), path()) for name in ("rename", "copy", "move", "link")),
        *(lambda name=name: (name, chance.choice(FOLDERS)) for name in ("listdir", "scandir", "walk")),
        lambda: ("symlink", chance.choice(["d", "a", "../a", "e"]), path()),
        lambda: ("truncate", path(), chance.randrange(5)),
    ]
    return [chance.choice(kinds)() for _ in range(count)]


@pytest.mark.parametrize("seed", range(int(os.environ.get("FILE_SEEDS", "2"))))
def test_ranks_that_access_files_at_different_times_get_the_results_of_a_serial_run(
    processes, tmp_path, seed
):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folders, printed = [], []
    for size in (1, 2, 3):
        folder = tmp_path / f"{size}" / "root"
        folder.parent.mkdir()
        before = [("d", "folder", ""), ("e", "folder", ""), ("l", "link", "d"), ("a", "file", "64")]
        lay_out(folder, [*before, ("d/a", "file", "1\n2\n"), ("e/a", "file", "x"), ("d/b", "file", "y\n")])
        (folder / "operations.json").write_text(json.dumps(drawn(seed)))
        ranks = processes.run(run_script, size, script, (), folder)
        assert not any(trace for _, _, trace in ranks), ranks
        printed += [(size, text) for text, _, _ in ranks]
        folders.append(tree(folder))
    serial = [without_order(ast.literal_eval(line)) for line in printed[0][1].splitlines()]
    assert len(serial) == len(drawn(seed))
    by_size = {}
    for size, text in printed[1:]:
        lines = text.splitlines()
        assert [without_order(ast.literal_eval(line)) for line in lines] == serial
        assert by_size.setdefault(size, lines) == lines
    assert folders[0] == folders[1] == folders[2]
