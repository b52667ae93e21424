"""`samestep scale` as a user calls it measures real runs and deletes their files."""

import json
import re
from pathlib import Path

import pytest

from samestep.base.machine.description import cpu_share
from samestep.scaling.analysis.study import read_study
from samestep.scaling.report.tables import results
from support.forked_commands import samestep

NATIVE = """
import sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

if sys.argv[1] == "4":
    raise ValueError("a batch of 4 is too small")
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10**6):
    optimizer.zero_grad()
    model(torch.ones(int(sys.argv[1]), 64)).square().mean().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        open("steps.txt", "a").write("1")
"""


SERIAL = """
import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10**6):
    optimizer.zero_grad()
    model(torch.ones(12, 64)).square().mean().backward()
    optimizer.step()
"""
HAS_CORES = cpu_share().usable > 1
"""Whether two workers have cores of their own, so that one worker is measured with both."""


@pytest.mark.skipif(not HAS_CORES, reason="one worker has no further cores here")
def test_one_process_with_the_cores_of_all_workers_is_a_baseline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SERIAL)
    flags = ("--steps=4", "--warm-up=2", "--repeats=1", "--device=cpu", "--threads=1", "--out=study")
    ended = samestep("scale", "-n", "1,2", *flags, "train.py")

    assert ended.code == 0, ended.err
    study = read_study(Path("study"))
    one, two = study.points
    (alone,) = study.one_process
    measured = [(point.workers, point.threads, point.cores_of) for point in (one, alone, two)]
    assert measured == [(1, 1, 1), (1, 2, 2), (2, 1, 1)]
    faster = max(one, alone, key=lambda point: point.samples_per_second)
    assert two.speedup == pytest.approx(two.samples_per_second / faster.samples_per_second)
    assert two.baseline_cores_of == faster.cores_of
    assert two.efficiency == pytest.approx(two.samples_per_second / one.samples_per_second / 2)
    assert (study.verdict.code == "threads-as-fast") == (faster is alone and two.speedup <= 1.05)
    assert [row[:2] for row in results(study)[1]] == [["1", "1"], ["1", "2"], ["2", "1"]]
    assert sum(line.split()[:2] == ["1", "2"] for line in ended.out.splitlines()) == 1


def test_a_native_script_is_measured_and_a_number_of_workers_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(NATIVE)
    flags = ("--steps=4", "--warm-up=2", "--repeats=1", "--oversubscribe", "--out=study", "--json")
    ended = samestep("scale", "-n", "2,3", *flags, "--", "train.py", "{12/n}")

    assert ended.code == 1, ended.err
    assert "ValueError: a batch of 4 is too small" in ended.err
    said = json.loads(ended.out)
    (point,) = said["points"]
    assert (point["workers"], point["mode"], point["global_batch"]) == (2, "strong", 12)
    assert point["samples_per_second"] > 0
    assert point["step_s"]["exposed_sync"] > 0
    (note,) = [one["text"] for one in said["notes"] if one["code"] == "run-failed"]
    assert note.startswith("3 workers, round 1 failed with exit code 1: ")
    why, log = note.split(" Its log: ")
    assert why.endswith("ValueError: a batch of 4 is too small.")
    assert Path("study", log.removesuffix(".")).is_file()
    assert len(read_study(Path("study")).points) == 1
    assert sorted(path.name for path in Path("study").iterdir()) == ["report.html", "study.json", "trials"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study", "train.py"]
    assert not list(Path("study").rglob("scratch"))


def test_a_recipe_is_measured_in_both_modes_and_its_variants_are_compared(measured):
    folder, ended = measured
    assert ended.code == 0, ended.err
    assert f"{5 + HAS_CORES} runs" in ended.err
    points = read_study(folder).points
    assert {(one.variant, one.mode, one.workers): one.global_batch for one in points} == {
        (f"sync={sync}", mode, workers): 24 * (workers if mode == "weak" else 1)
        for sync in ("flat", "ddp")
        for mode in ("strong", "weak")
        for workers in (1, 2)
    }
    assert all((one.step_s["exposed_sync"] > 0) == (one.workers > 1) for one in points)
    headers = [path.read_text().splitlines()[0] for path in folder.glob("trials/*/clock/rank-0.jsonl")]
    ways = sorted((told["kind"], told["size"], told["sync"]) for told in map(json.loads, headers))
    alone = [("recipe", 1, "")] * (1 + HAS_CORES)
    assert ways == [*alone, *[("recipe", 2, sync) for sync in ("ddp", "ddp", "flat", "flat")]]
    kinds = re.findall(r"^(.): (strong|weak) scaling, (sync=\w+)\.$", ended.out, re.MULTILINE)
    assert kinds == [
        ("a", "strong", "sync=flat"),
        ("b", "strong", "sync=ddp"),
        ("c", "weak", "sync=flat"),
        ("d", "weak", "sync=ddp"),
    ]
    assert not list(folder.rglob("scratch"))
