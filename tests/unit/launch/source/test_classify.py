"""The kind of a script is found in its source."""

import sys

import pytest

from samestep.base.errors import UsageError
from samestep.launch.source.classify import classify
from support.editable import Editable
from support.sources import written

NATIVE = {
    "module": "import torch.distributed\ntorch.distributed.init_process_group('gloo')",
    "alias": "import torch.distributed as dist\ndist.init_process_group('gloo')",
    "from": "from torch import distributed\ndistributed.init_process_group('gloo')",
    "from as": "from torch.distributed import init_process_group as go\ngo('gloo')",
    "star": "from torch.distributed import *\ninit_process_group('gloo')",
    "assigned": "import torch\nDDP = torch.nn.parallel.DistributedDataParallel\nDDP(model)",
    "in a function": "def main():\n    import torch.distributed as d\n    d.init_process_group()\nmain()",
    "ddp": "from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(model)",
    "join": "import samestep\nwith samestep.join() as world: pass",
    "join from": "from samestep import join\nwith join() as world: pass",
    "lightning": "import lightning as L\nL.Trainer(devices=2)",
    "deepspeed": "import deepspeed\ndeepspeed.initialize()",
    "horovod": "import horovod.torch as hvd\nhvd.init()",
    "ignite": "import ignite.distributed as idist\nwith idist.Parallel('gloo') as p: p.run(f)",
    "mesh": "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cpu', (2,))",
    "former mesh": "from torch.distributed._tensor import device_mesh as d\nd.init_device_mesh('cpu', (2,))",
    "decorated": "from torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef f(): ...",
    "horovod tf": "import horovod.tensorflow as hvd\nhvd.init()",
    "rpc": "import torch.distributed.rpc as rpc\nrpc.init_rpc('a')",
    "composable": "from torch.distributed._composable.fsdp import fully_shard\nfully_shard(model)",
    "annotated": "import torch.distributed as d\nf: object = d.init_process_group\nf()",
    "assigned twice": "import torch.distributed as d\na = b = d.init_process_group\na()",
    "bound again": "import torch.distributed as dist, m\ndist.init_process_group()\ndef f(): dist = m.dist",
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
    "def f(r): d.init_process_group('gloo', rank=r)\nmp.spawn(f)",
    "by hand": "import torch.distributed as d\nfrom torch.multiprocessing import Process\n"
    "def f(r): d.init_process_group('gloo', 'file:///s', None, 2, r)\nProcess(target=f).start()",
    "by variables": "import os, torch.distributed as d, multiprocessing as mp\n"
    "def f(r):\n    os.environ['RANK'] = str(r)\n    d.init_process_group()\n"
    "ctx = mp.get_context('spawn')\nctx.Process(target=f, args=(0,)).start()",
}
WITH_HELPERS = {
    "context": "mp.get_context('forkserver')",
    "process": "mp.Process(target=load).start()",
    "of a context": "mp.get_context('fork').Process(target=load).start()",
    "derived": "class Loader(mp.Process): pass\nLoader().start()",
    "spawned": "import torch\ntorch.multiprocessing.spawn(load)",
}
GROUPS = {
    "by the launcher": "d.init_process_group('nccl')",
    "rank of a variable": "d.init_process_group('nccl', rank=int(os.environ['RANK']), world_size=2)",
    "rank assigned before": "rank = int(os.getenv('RANK', 0))\nd.init_process_group('nccl', rank=rank)",
    "translated": "os.environ['RANK'] = os.environ['SLURM_PROCID']\nd.init_process_group('nccl')",
    "default port": "os.environ.setdefault('MASTER_PORT', '29500')\nd.init_process_group('nccl')",
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


@pytest.mark.parametrize("text", NATIVE.values(), ids=NATIVE)
def test_a_script_that_joins_its_peers_is_native(tmp_path, text):
    found = classify(written(tmp_path, text))

    assert found.kind == "native"
    assert str(found.evidence).startswith("train.py:")


@pytest.mark.parametrize("text", SPAWNS.values(), ids=SPAWNS)
def test_a_script_that_starts_its_own_workers_spawns(tmp_path, text):
    assert classify(written(tmp_path, text)).kind == "spawns"


@pytest.mark.parametrize("helper", WITH_HELPERS.values(), ids=WITH_HELPERS)
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_processes_of_a_script_with_the_launchers_rank_are_helpers(tmp_path, group, helper):
    text = f"import os, multiprocessing as mp, torch.distributed as d\n{group}\n{helper}\n"
    assert classify(written(tmp_path, text)).kind == "native"


def test_a_call_of_join_is_found_after_other_calls(tmp_path):
    text = (
        "import samestep\nfrom torch.nn.parallel import DistributedDataParallel as D\nD(m)\nsamestep.join()"
    )
    found = classify(written(tmp_path, text))

    assert (found.evidence.line, found.joins) == (3, True)
    assert not classify(written(tmp_path, "import torch.distributed as d\nd.init_process_group()")).joins


def test_a_script_too_long_to_parse_is_native(tmp_path):
    assert classify(written(tmp_path, f"x = {'+'.join(['1'] * 200_000)}\n")).kind == "native"


@pytest.mark.parametrize("text", SERIAL.values(), ids=SERIAL)
def test_any_other_script_is_serial(tmp_path, text):
    found = classify(written(tmp_path, text))

    assert found.kind == "serial"
    assert found.evidence is None


def test_the_evidence_is_the_first_call_and_its_line(tmp_path):
    text = """\
        import torch.distributed as dist

        def main():
            dist.init_process_group("gloo")

        main()
        """
    assert str(classify(written(tmp_path, text)).evidence) == (
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
def test_imported_modules_of_the_user_are_read(tmp_path, statement, name):
    written(tmp_path, "import torch.distributed as d\ndef go(): d.init_process_group()\ngo()", name)
    found = classify(written(tmp_path, f"{statement}\n"))

    assert found.kind == "native"
    assert found.evidence.file == tmp_path / name


def test_relative_imports_are_followed_from_their_own_package(tmp_path):
    written(tmp_path, "from ..shared import go", "pkg/sub/tool.py")
    written(tmp_path, "import torch.distributed as d\ndef go(): d.init_process_group()", "pkg/shared.py")
    script = written(tmp_path, "from .sub.tool import go\ngo()", "pkg/__main__.py")

    assert classify(script, roots=[tmp_path]).kind == "native"


@pytest.mark.parametrize(
    ("statement", "group"),
    [
        ("from common import *", "dist"),
        ("from common import dist as d", "d"),
        ("import common as c", "c.dist"),
        ("from again import *", "dist"),
        ("from pack.common import *", "dist"),
        ("from pack import dist", "dist"),
    ],
)
def test_imports_of_the_users_modules_are_found_under_their_names(tmp_path, statement, group):
    """Such a script was run once, and failed at the missing RANK."""
    written(tmp_path, "import torch.distributed as dist\nfrom again import *\n", "common.py")
    written(tmp_path, "from common import *\n", "again.py")
    written(tmp_path, "from .common import *\n", "pack/__init__.py")
    written(tmp_path, "from torch import distributed as dist\n", "pack/common.py")

    found = classify(written(tmp_path, f"{statement}\n{group}.init_process_group('gloo')"))
    assert (found.kind, found.evidence.name) == ("native", "torch.distributed.init_process_group")
    assert classify(written(tmp_path, f"{statement}\nprint({group})")).kind == "serial"


def test_imports_are_searched_in_further_folders_and_the_first_match_counts(tmp_path):
    written(tmp_path, "import torch.distributed as d\ndef go(): d.init_process_group()", "lib/mine/go.py")
    script = written(tmp_path, "from mine import go\ngo.go()", "tools/train.py")

    assert classify(script).kind == "serial"
    assert classify(script, roots=[script.parent, tmp_path / "lib"]).kind == "native"

    written(tmp_path, "def go(): pass", "tools/mine/go.py")
    assert classify(script, roots=[script.parent, tmp_path / "lib"]).kind == "serial"


def test_packages_recognized_by_name_are_not_read(tmp_path):
    written(tmp_path, "import torch.distributed as d\nd.init_process_group()", "lib/samestep/__init__.py")
    script = written(tmp_path, "import samestep", "tools/train.py")

    assert classify(script, roots=[script.parent, tmp_path / "lib"]).kind == "serial"


def test_an_editable_install_is_followed_to_its_source(tmp_path, monkeypatch):
    written(tmp_path, "import torch.distributed as d\nd.init_process_group()", "src/mine/__init__.py")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable("mine", tmp_path / "src")])

    assert classify(written(tmp_path, "import mine")).kind == "native"


def test_modules_that_import_each_other_are_read(tmp_path):
    written(tmp_path, "import b", "a.py")
    written(tmp_path, "import a", "b.py")

    assert classify(written(tmp_path, "import a")).kind == "serial"


def test_the_main_block_of_an_imported_module_does_not_count(tmp_path):
    written(
        tmp_path, "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(f)", "tool.py"
    )
    assert classify(written(tmp_path, "import tool")).kind == "serial"


def test_an_imported_module_that_is_not_python_is_skipped(tmp_path):
    written(tmp_path, "def f(:", "broken.py")
    assert classify(written(tmp_path, "import broken")).kind == "serial"


def test_a_script_that_is_not_python_is_refused_with_its_line(tmp_path):
    with pytest.raises(UsageError, match=r"train\.py:2 "):
        classify(written(tmp_path, "import torch\ndef f(:\n"))


ONE_DEVICE = {
    "accelerate": "from accelerate import Accelerator\nAccelerator()",
    "accelerate in a function": "import accelerate as a\ndef main(): a.Accelerator(cpu=True)\nmain()",
    "lightning": "import lightning as L\nL.Trainer(devices=1, strategy='auto')",
    "lightning, one of a list": "import lightning as L\nL.Trainer(devices=[0], accelerator='gpu')",
    "old lightning": "import pytorch_lightning as pl\npl.Trainer(gpus=1)",
    "fabric": "from lightning.fabric import Fabric\nFabric()",
    "a class of strategies": "import lightning as L\nfrom lightning.pytorch.strategies import "
    "SingleDeviceStrategy\nL.Trainer(strategy=SingleDeviceStrategy())",
    "composer": "from composer import Trainer\nTrainer()",
    "transformers": "from transformers import Trainer, TrainingArguments as A\nTrainer(args=A('out'))",
    "not sharded": "from transformers import Trainer, TrainingArguments as A\n"
    "Trainer(args=A(fsdp='', deepspeed=None))",
    "derived": "from transformers.trainer import Trainer\nclass My(Trainer): pass\nMy().train()",
    "class method": "import pytorch_lightning as pl\npl.Trainer.from_argparse_args(args)",
    "called through": "from mmengine.runner import Runner\nRunner.from_cfg({})",
    "rank of a launcher, or none": "import os, accelerate\nd = os.environ.get('LOCAL_RANK', 0)\n"
    "accelerate.Accelerator()",
    "unknown number": "import lightning as L\nL.Trainer(devices=config.devices)",
}
SEVERAL_DEVICES = {
    "devices": "import lightning as L\nL.Trainer(devices=2)",
    "all devices": "import lightning as L\nL.Trainer(devices=-1)",
    "a list": "import lightning as L\nL.Trainer(devices=[0, 1])",
    "a text": "import lightning as L\nL.Fabric(devices='2')",
    "nodes": "import pytorch_lightning as pl\npl.Trainer(num_nodes=2)",
    "strategy": "import lightning as L\nL.Trainer(devices=1, strategy='ddp')",
    "a class of strategies": "import lightning as L\nfrom lightning.pytorch.strategies import DDPStrategy\n"
    "L.Trainer(strategy=DDPStrategy())",
    "sharded": "from transformers import Trainer, TrainingArguments as A\nTrainer(args=A(fsdp='full_shard'))",
    "options of DDP": "from accelerate import Accelerator, DistributedDataParallelKwargs as K\n"
    "Accelerator(kwargs_handlers=[K(find_unused_parameters=True)])",
    "rank of a launcher": "import os, accelerate\nd = os.environ['LOCAL_RANK']\naccelerate.Accelerator()",
    "launcher": "from mmengine.runner import Runner\nRunner(model, launcher='pytorch')",
}


@pytest.mark.parametrize("text", ONE_DEVICE.values(), ids=ONE_DEVICE)
def test_a_script_that_does_not_request_several_devices_of_a_library_is_serial(tmp_path, text):
    found = classify(written(tmp_path, text))

    assert found.kind == "serial"
    assert found.evidence is not None


@pytest.mark.parametrize("text", SEVERAL_DEVICES.values(), ids=SEVERAL_DEVICES)
def test_a_script_that_requests_several_devices_of_a_library_is_native(tmp_path, text):
    assert classify(written(tmp_path, text)).kind == "native"


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["--devices", "1"], "serial"),
        (["--devices", "4"], "native"),
        (["--trainer.devices=2"], "native"),
        (["--strategy", "ddp"], "native"),
        (["--fsdp", "full_shard"], "native"),
        (["--deepspeed", "zero.json"], "native"),
        (["--epochs", "4", "devices"], "serial"),
        (["--ddp_find_unused_parameters", "False"], "serial"),
        (["--fsdp", ""], "serial"),
        (["--deepspeed", "None"], "serial"),
        (["--tp_size", "1"], "serial"),
        (["--strategy", "no"], "serial"),
    ],
)
def test_flags_of_the_script_can_request_several_devices(tmp_path, arguments, kind):
    script = written(tmp_path, "import lightning as L\nL.Trainer(devices=args.devices)")

    assert classify(script, arguments=arguments).kind == kind
    assert classify(written(tmp_path, "print()"), arguments=arguments).kind == "serial"
