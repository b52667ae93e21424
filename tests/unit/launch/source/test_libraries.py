"""A script with a training library is serial on one device, and native if it requests several."""

import pytest

from samestep.launch.source.classify import classify
from support.sources import written

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
