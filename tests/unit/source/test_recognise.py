"""What a script is, from its text."""

from textwrap import dedent

import pytest

from samestep.base.errors import UsageError
from samestep.source.recognise import recognise

NATIVE = {
    "module": "import torch.distributed\ntorch.distributed.init_process_group('gloo')",
    "alias": "import torch.distributed as dist\ndist.init_process_group('gloo')",
    "from": "from torch import distributed\ndistributed.init_process_group('gloo')",
    "from as": "from torch.distributed import init_process_group as go\ngo('gloo')",
    "star": "from torch.distributed import *\ninit_process_group('gloo')",
    "assigned": "import torch\nDDP = torch.nn.parallel.DistributedDataParallel\nDDP(model)",
    "in a function": "def main():\n    import torch.distributed as d\n    d.init_process_group()",
    "ddp": "from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(model)",
    "join": "import samestep\nwith samestep.join() as world: pass",
    "join from": "from samestep import join\nwith join() as world: pass",
    "accelerate": "from accelerate import Accelerator\nAccelerator()",
    "lightning": "import lightning as L\nL.Trainer(devices=2)",
    "old lightning": "import pytorch_lightning as pl\npl.Trainer()",
    "fabric": "from lightning.fabric import Fabric\nFabric()",
    "deepspeed": "import deepspeed\ndeepspeed.initialize()",
    "horovod": "import horovod.torch as hvd\nhvd.init()",
    "composer": "from composer import Trainer\nTrainer()",
    "ignite": "import ignite.distributed as idist\nwith idist.Parallel('gloo') as p: p.run(f)",
    "transformers": "from transformers import Trainer\nTrainer()",
    "mesh": "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cpu', (2,))",
    "mpi": "from mpi4py import MPI\nMPI.COMM_WORLD.Get_rank()",
}
SPAWNS = {
    "mp": "import torch.multiprocessing as mp\nmp.spawn(main, nprocs=2)",
    "torch": "import torch\ntorch.multiprocessing.spawn(main)",
    "from": "from torch.multiprocessing import spawn\nspawn(main)",
    "processes": "import torch.multiprocessing as mp\nmp.start_processes(main)",
    "ours": "import samestep\nsamestep.spawn(main, 2)",
    "notebook": "from accelerate import notebook_launcher\nnotebook_launcher(f)",
    "with a group": "import torch.multiprocessing as mp, torch.distributed as d\n"
    "def f(): d.init_process_group()\nmp.spawn(f)",
    "by hand": "import torch.distributed as d\nfrom torch.multiprocessing import Process\n"
    "def f(): d.init_process_group()\nProcess(target=f).start()",
}
SERIAL = {
    "nothing": "print('hello')",
    "plain": "import torch\nmodel = torch.nn.Linear(2, 2)",
    "asked only": "import torch.distributed as dist\nif dist.is_initialized(): dist.barrier()",
    "not called": "from torch.nn.parallel import DistributedDataParallel\nprint(DistributedDataParallel)",
    "own name": "def init_process_group(): pass\ninit_process_group()",
    "own trainer": "from mylib import Trainer\nTrainer()",
    "data parallel": "import torch\ntorch.nn.DataParallel(model)",
    "loader process": "from torch.multiprocessing import Process\nProcess(target=load).start()",
    "in a string": "'import torch.distributed as dist; dist.init_process_group()'",
}


def written(folder, text, name="train.py"):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(text))
    return file


@pytest.mark.parametrize("text", NATIVE.values(), ids=NATIVE)
def test_a_script_that_joins_its_peers_is_native(tmp_path, text):
    found = recognise(written(tmp_path, text))

    assert found.kind == "native"
    assert str(found.evidence).startswith("train.py:")


@pytest.mark.parametrize("text", SPAWNS.values(), ids=SPAWNS)
def test_a_script_that_starts_its_own_workers_spawns(tmp_path, text):
    assert recognise(written(tmp_path, text)).kind == "spawns"


@pytest.mark.parametrize("text", SERIAL.values(), ids=SERIAL)
def test_any_other_script_is_serial(tmp_path, text):
    found = recognise(written(tmp_path, text))

    assert found.kind == "serial"
    assert found.evidence is None


def test_the_evidence_is_the_first_call_and_its_line(tmp_path):
    text = """\
        import torch.distributed as dist

        def main():
            dist.init_process_group("gloo")

        main()
        """
    assert str(recognise(written(tmp_path, text)).evidence) == (
        "train.py:4 torch.distributed.init_process_group"
    )


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("import setup_dist", "setup_dist.py"),
        ("from setup_dist import go", "setup_dist.py"),
        ("from tools import setup_dist", "tools/setup_dist.py"),
        ("import tools.setup_dist", "tools/setup_dist.py"),
        ("import tools", "tools/__init__.py"),
        ("from tools.deep.setup_dist import go", "tools/deep/setup_dist.py"),
    ],
)
def test_modules_beside_the_script_are_followed(tmp_path, statement, name):
    written(tmp_path, "import torch.distributed as d\ndef go(): d.init_process_group()", name)
    found = recognise(written(tmp_path, f"{statement}\n"))

    assert found.kind == "native"
    assert found.evidence.file == tmp_path / name


def test_relative_imports_are_followed_from_where_they_stand(tmp_path):
    written(tmp_path, "from ..shared import go", "pkg/sub/tool.py")
    written(tmp_path, "import torch.distributed as d\ndef go(): d.init_process_group()", "pkg/shared.py")
    script = written(tmp_path, "from .sub.tool import go\ngo()", "pkg/__main__.py")

    assert recognise(script, root=tmp_path).kind == "native"


def test_modules_that_import_each_other_are_read_once(tmp_path):
    written(tmp_path, "import b", "a.py")
    written(tmp_path, "import a", "b.py")

    assert recognise(written(tmp_path, "import a")).kind == "serial"


def test_what_a_neighbour_does_as_main_does_not_count(tmp_path):
    written(
        tmp_path, "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(f)", "tool.py"
    )
    assert recognise(written(tmp_path, "import tool")).kind == "serial"


def test_a_neighbour_that_is_not_python_is_left_to_python(tmp_path):
    written(tmp_path, "def f(:", "broken.py")
    assert recognise(written(tmp_path, "import broken")).kind == "serial"


def test_a_script_that_is_not_python_is_refused_with_its_line(tmp_path):
    with pytest.raises(UsageError, match=r"train\.py:2 "):
        recognise(written(tmp_path, "import torch\ndef f(:\n"))
