"""``samestep run --clock`` writes each worker's steps, and ends all workers after the same step."""

import json
import re
from pathlib import Path

import pytest

from support.forked_commands import samestep
from support.tiers import long_param

GALLERIES = Path(__file__).parents[1]
FEW = ("--clock-steps", 3, "--clock-warm-up", 2)


def read(folder):
    """Return the first line, the steps, and the last line of each worker."""
    files = sorted(folder.glob("rank-*.jsonl"))
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [(first, steps, last) for first, *steps, last in lines]


@pytest.mark.parametrize(
    ("script", "kind", "workers", "sync"),
    [
        long_param("gallery/toplevel_cnn.py", "serial", 1, ""),
        ("gallery/toplevel_cnn.py", "once", 2, ""),
        ("gallery_ddp/ddp_tutorial.py", "native", 2, "ddp"),
    ],
)
def test_all_workers_are_stopped_after_the_same_step(tmp_path, script, kind, workers, sync):
    folder = tmp_path / "clock"
    (tmp_path / "temporary").mkdir()
    temporary = {"TMPDIR": str(tmp_path / "temporary")}
    ended = samestep("run", "-n", workers, "--clock", folder, *FEW, GALLERIES / script, **temporary)

    assert (ended.code, "Traceback" in ended.err) == (0, False), ended.err
    assert re.findall(r"stopped after (\d+) clocked steps", ended.err) == ["3"]
    assert str(folder) in ended.err
    assert not list((tmp_path / "temporary").glob("samestep-*"))
    ranks = read(folder)
    assert len(ranks) == (1 if kind == "once" else workers)
    for rank, (first, steps, last) in enumerate(ranks):
        assert (first["rank"], first["size"], first["kind"], first["sync"]) == (rank, workers, kind, sync)
        assert [step["step"] for step in steps] == [2, 3, 4]
        assert (last["ended"], last["samples_per_epoch"]) == ("steps", ranks[0][2]["samples_per_epoch"])
    assert len({sum(steps[k]["samples"] for _, steps, _ in ranks) for k in range(3)}) == 1


@pytest.mark.parametrize(
    ("script", "where"),
    [long_param("gallery/toplevel_cnn.py", ""), ("gallery_ddp/ddp_tutorial.py", " on worker 0")],
)
def test_the_steps_and_samples_of_a_script_are_counted(tmp_path, monkeypatch, script, where):
    monkeypatch.chdir(tmp_path)  # it stores its model
    ended = samestep("run", "-n", 2, "--count", GALLERIES / script)

    assert ended.code == 0, ended.err
    counted = rf"samestep: (\d+) steps, (\d+) samples in training, \d+ otherwise{where}; .* a step: loading "
    ((steps, samples),) = re.findall(counted, ended.err)
    assert int(samples) > int(steps) > 1


def test_lines_that_a_script_has_not_flushed_are_in_its_files(tmp_path):
    script, log = tmp_path / "train.py", tmp_path / "log.csv"
    script.write_text(
        f"import torch; log = open({str(log)!r}, 'w'); model = torch.nn.Linear(3, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(1000):\n"
        "    model(torch.ones(4, 3)).mean().backward(); print(step, file=log); optimizer.step()\n"
    )
    ended = samestep("run", "--clock", tmp_path / "clock", *FEW, script)

    assert ended.code == 0, ended.err
    assert log.read_text() == "0\n1\n2\n3\n4\n"


def test_a_recipe_is_ended_after_the_same_step(tmp_path):
    out = tmp_path / "run"
    ended = samestep("train", "digits", "-n", 2, "--clock", tmp_path / "clock", *FEW, "--out", out, "--json")

    assert (ended.code, ended.out) == (0, ""), ended.err
    assert re.findall(r"stopped after (\d+) clocked steps", ended.err) == ["3"]
    for first, steps, last in read(tmp_path / "clock"):
        assert (first["kind"], first["warm_up"], first["steps"]) == ("recipe", 2, 3)
        assert [step["step"] for step in steps] == [2, 3, 4]
        assert last["ended"] == "steps"
    assert not (out / "result.json").exists()


def test_the_clock_file_of_a_failed_script_contains_the_error(tmp_path):
    ended = samestep("run", "-n", 2, "--clock", tmp_path / "clock", GALLERIES / "gallery_ddp/crash.py")

    assert ended.code == 1
    # One worker that fails is enough for the other to be stopped, maybe before it has written anything.
    written = [
        json.loads(line) for file in (tmp_path / "clock").iterdir() for line in file.read_text().splitlines()
    ]
    assert any(one.get("ended", "").startswith("error: ") for one in written)
