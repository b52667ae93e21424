"""What a script is, read from its text: does it bring its own workers, join others, or know of one only?

======== ===================================================== ============================
kind     the script, or a module beside it                     so it is
======== ===================================================== ============================
spawns   starts its own workers (`torch.multiprocessing.spawn`) started once, and left to it
native   sets up `torch.distributed` or uses what does         started on every worker
serial   neither                                               one worker's work
======== ===================================================== ============================
"""

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from samestep.base.errors import UsageError
from samestep.source.names import Names, called_names
from samestep.source.neighbours import neighbours

Kind: TypeAlias = Literal["native", "spawns", "serial"]

MAX_FILES = 300
"""Modules beside the script that are followed; what is not found in so many is taken to be absent."""

# A name ends in a dot where anything below it counts.
SPAWNS = (
    "torch.multiprocessing.spawn",
    "torch.multiprocessing.start_processes",
    "torch.distributed.launcher.",
    "torch.distributed.run.",
    "samestep.spawn",
    "accelerate.notebook_launcher",
    "accelerate.debug_launcher",
    "detectron2.engine.launch",
    "ray.train.torch.TorchTrainer",
    "ray.train.lightning.",
    "torchrunx.",
)
STARTS_PROCESSES = (
    "torch.multiprocessing.Process",
    "multiprocessing.Process",
    "torch.multiprocessing.get_context",
    "multiprocessing.get_context",
)
"""Ways to start processes for any purpose; with a process group set up by hand they are its workers."""

BY_HAND = ("torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group")
NATIVE = (
    *BY_HAND,
    "torch.distributed.init_device_mesh",
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.fsdp.",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
    "samestep.join",
    "accelerate.Accelerator",
    "accelerate.PartialState",
    "lightning.Trainer",
    "lightning.Fabric",
    "lightning.pytorch.Trainer",
    "lightning.pytorch.cli.LightningCLI",
    "lightning.fabric.Fabric",
    "lightning_fabric.Fabric",
    "pytorch_lightning.Trainer",
    "pytorch_lightning.cli.LightningCLI",
    "deepspeed.initialize",
    "deepspeed.init_distributed",
    "horovod.torch.init",
    "composer.Trainer",
    "composer.trainer.Trainer",
    "ignite.distributed.",
    "transformers.Trainer",
    "transformers.Seq2SeqTrainer",
    "trl.",
    "timm.utils.init_distributed_device",
    "mmengine.runner.Runner",
    "mmengine.dist.init_dist",
    "colossalai.launch_from_torch",
    "fairscale.nn.",
    "megatron.",
    "torchtitan.",
    "jax.distributed.initialize",
    "mpi4py.",
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One call that shows what a script is.

    >>> str(Evidence(Path("train.py"), 12, "torch.distributed.init_process_group"))
    'train.py:12 torch.distributed.init_process_group'
    """

    file: Path
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line} {self.name}"


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a script is, and the first call that shows it (none shows that it is serial)."""

    kind: Kind
    evidence: Evidence | None = None


def recognise(script: Path, *, root: Path | None = None) -> Recognised:
    """Say what `script` is, from its text and that of the modules beside it; nothing is run.

    Args:
        script: the file that runs as ``__main__``.
        root: where its imports are looked for; by default beside it.

    Raises:
        UsageError: the script is not text that Python can read.
    """
    native: Evidence | None = None
    processes: Evidence | None = None
    by_hand = False
    for evidence in _calls(script, root or script.parent):
        if _is_one_of(evidence.name, SPAWNS):
            return Recognised("spawns", evidence)
        if processes is None and _is_one_of(evidence.name, STARTS_PROCESSES):
            processes = evidence
        if _is_one_of(evidence.name, NATIVE):
            by_hand = by_hand or evidence.name in BY_HAND
            native = native or evidence
    if by_hand and processes is not None:
        return Recognised("spawns", processes)
    return Recognised("native", native) if native else Recognised("serial")


def _calls(script: Path, root: Path) -> Iterator[Evidence]:
    """Yield what is called by full name, in the script first and then in its neighbours, nearest first."""
    waiting = deque([script])
    seen = {script.resolve()}
    while waiting:
        file = waiting.popleft()
        tree = _parsed(file, is_script=file is script)
        if tree is None:
            continue
        for name, line in called_names(tree, Names(tree), is_main=file is script):
            yield Evidence(file, line, name)
        for neighbour in neighbours(tree, file, root):
            if len(seen) < MAX_FILES and neighbour.resolve() not in seen:
                seen.add(neighbour.resolve())
                waiting.append(neighbour)


def _parsed(file: Path, *, is_script: bool) -> ast.Module | None:
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as error:
        if not is_script:
            return None  # Python will say so, should the script ever import it
        where = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(f"{file}{where} is not Python that can be read: {why}.") from None
    except OSError as error:
        if not is_script:
            return None
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None


def _is_one_of(name: str, table: tuple[str, ...]) -> bool:
    return any(name.startswith(entry) if entry.endswith(".") else name == entry for entry in table)
