"""`verify` notes mistakes that show on several ranks, and that make no difference between the runs."""

import os
import socket

import pytest

SCRIPT = """\
import os, torch, torch.distributed as dist
ADDRESS
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
DEVICE
torch.manual_seed(0)
model = DDP(nn.Linear(4, 2).cuda(), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
samples = torch.randn(64, 4)
for step in range(4):
    batch = samples[step * 8 : step * 8 + 8][rank::size].to("cuda")
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    LOG
SAVE
dist.destroy_process_group()
"""
RIGHT = {
    "ADDRESS": "os.environ.setdefault('MASTER_ADDR', 'localhost')",
    "DEVICE": "torch.cuda.set_device(rank); torch.set_num_threads(max(1, os.cpu_count() // size))",
    "LOG": "print(step, file=open(f'log-{rank}.csv', 'a'))",
    "SAVE": "if rank == 0: torch.save({'model': model.module.state_dict()}, 'model.pt')",
}
WRONG = {
    "own-address": ("ADDRESS", "os.environ['MASTER_PORT'] = os.environ['OWN_PORT']"),
    "device-of-rank-0": ("DEVICE", ""),
    "threads-of-all-cores": ("DEVICE", "torch.cuda.set_device(rank); torch.set_num_threads(os.cpu_count())"),
    "several-writers": ("LOG", "print(step, file=open('log.csv', 'a'))"),
    "module-keys": ("SAVE", "if rank == 0: torch.save({'model': model.state_dict()}, 'model.pt')"),
}


def noted(verifier, folder, lines):
    text = SCRIPT
    for name, line in lines.items():
        text = text.replace(name, line)
    path = folder / "train.py"
    path.write_text(text)
    report = verifier.verify(path, device="cpu")
    assert report["verdict"] == "same", report["findings"]
    return {one["code"]: one for one in report["findings"]}


def test_a_correct_script_has_no_notes(verifier, tmp_path):
    assert noted(verifier, tmp_path, RIGHT) == {}
    threads = f"torch.cuda.set_device(rank); torch.set_num_threads({os.cpu_count()})"
    assert noted(verifier, tmp_path, RIGHT | {"DEVICE": threads}) == {}


@pytest.mark.parametrize("code", sorted(WRONG))
def test_a_mistake_on_several_ranks_is_noted(verifier, tmp_path, code):
    name, line = WRONG[code]
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = line.replace("os.environ['OWN_PORT']", f"'{server.getsockname()[1]}'")
    found = noted(verifier, tmp_path, RIGHT | {name: line})
    assert set(found) == {code}
    expected = {"device-of-rank-0": [1], "module-keys": [0]}.get(code, [])
    assert (found[code]["gravity"], found[code]["ranks"], found[code]["workers"]) == ("note", expected, 2)
