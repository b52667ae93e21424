"""Scripts that name GPUs and NCCL run on CPUs by ``--device cpu``, also under verify."""

import json
from pathlib import Path

import pytest

from support.forked_commands import samestep
from support.tiers import long_param

SCRIPT = Path(__file__).parents[1] / "gallery_gpu/nccl_ddp.py"


def losses(text):
    return [line for line in text.splitlines() if line.startswith("epoch")]


def test_a_script_for_gpus_and_nccl_trains_on_cpus():
    one = samestep("run", "-n", 1, "--device", "cpu", SCRIPT)
    two = samestep("run", "-n", 2, "--device", "cpu", SCRIPT)

    assert (one.code, two.code) == (0, 0), one.err + two.err
    assert len(losses(one.out)) == 2
    assert losses(one.out)[0].endswith(" on cpu")
    assert len(losses(two.out)) == 2


def test_a_script_for_gpus_fails_without_the_option():
    ended = samestep("run", "-n", 2, SCRIPT)

    assert ended.code == 1
    assert losses(ended.out) == []


def test_a_script_for_gpus_is_verified():
    ended = samestep("verify", "-n", 2, "--device", "cpu", "--json", SCRIPT)

    assert ended.code == 0, ended.out + ended.err
    assert json.loads(ended.out)["verdict"] == "same"


def test_the_option_is_refused_for_an_executable(tmp_path):
    ended = samestep("run", "-n", 2, "--device", "cpu", "--no-python", "/bin/true")

    assert ended.code == 2
    assert "--device" in ended.err


def variant(tmp_path, *changes):
    """Write the script with some texts replaced; return its path."""
    text = SCRIPT.read_text()
    for usual, other in changes:
        assert usual in text
        text = text.replace(usual, other)
    (tmp_path / "train.py").write_text(text)
    return tmp_path / "train.py"


@pytest.mark.parametrize("group", ["", long_param(", dist.new_group()")], ids=["default group", "own group"])
def test_synchronized_batch_norm_normalizes_over_all_ranks(tmp_path, group):
    norm = ("torch.nn.Linear(8, 8), torch", "torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch")
    convert = (
        "model = DDP(",
        f"model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model{group})\nmodel = DDP(",
    )

    script = variant(tmp_path, norm, convert)
    ended = samestep("verify", "-n", 2, "--device", "cpu", "--json", script)

    assert ended.code == 0, ended.out + ended.err
    report = json.loads(ended.out)
    assert (report["verdict"], report["findings"]) == ("same", [])


def test_functions_of_the_accelerator_are_those_of_cuda(tmp_path):
    select = ("torch.cuda.set_device(local)", "torch.accelerator.set_device_index(local)")
    wait = ("torch.cuda.synchronize()", "torch.accelerator.synchronize()")
    device = ('f"cuda:{local}"', 'f"cuda:{torch.accelerator.current_device_index()}"')

    ended = samestep("run", "-n", 2, "--device", "cpu", variant(tmp_path, select, wait, device))

    assert ended.code == 0, ended.err
    assert len(losses(ended.out)) == 2


def test_a_script_that_averages_only_on_an_accelerator_named_cuda_is_averaged(tmp_path):
    device = ('torch.device(f"cuda:{local}")', "torch.accelerator.current_accelerator()")
    wrap = (
        "model = DDP(model, device_ids=[local], output_device=local)",
        'model = DDP(model.to(device)) if device.type == "cuda" else model',
    )

    script = variant(tmp_path, device, wrap)
    ended = samestep("verify", "-n", 2, "--device", "cpu", "--json", script)

    assert ended.code == 0, ended.out + ended.err
    assert json.loads(ended.out)["findings"] == []
