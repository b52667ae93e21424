"""Scripts that name GPUs and NCCL run on CPUs by ``--device cpu``, also under verify."""

import json
from pathlib import Path

from support.forked_commands import samestep

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


def test_it_fails_without_the_option():
    ended = samestep("run", "-n", 2, SCRIPT)

    assert ended.code == 1
    assert losses(ended.out) == []


def test_it_is_verified():
    ended = samestep("verify", "-n", 2, "--device", "cpu", "--json", SCRIPT)

    assert ended.code == 0, ended.out + ended.err
    assert json.loads(ended.out)["verdict"] == "same"


def test_an_executable_has_no_device_to_choose(tmp_path):
    ended = samestep("run", "-n", 2, "--device", "cpu", "--no-python", "/bin/true")

    assert ended.code == 2
    assert "--device" in ended.err
