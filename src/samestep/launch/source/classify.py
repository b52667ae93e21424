"""Classifies a script by its source: it starts its own workers, joins a process group, or is serial.

======== ============================================================ ====================================
kind     the script, or a module that it imports                      how samestep runs it
======== ============================================================ ====================================
spawns   starts its own workers and sets their ranks                  once
native   sets up `torch.distributed`, or uses a library that does     on every worker
serial   neither                                                      on every worker, its work split
======== ============================================================ ====================================
"""

import ast
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from samestep.base.errors import UsageError
from samestep.base.regular_files import TEXT_BYTES, read_bytes
from samestep.launch.source.local_imports import ImportedModules
from samestep.launch.source.names import Names, executed_nodes, used_names
from samestep.launch.source.own_rank import INIT_PROCESS_GROUP, sets_rank

Kind: TypeAlias = Literal["native", "spawns", "serial"]

MAX_FILES = 300
"""Maximum number of modules that are read."""

# Names below an entry match as well.
LAUNCHES = (
    "torch.distributed.launcher",
    "torch.distributed.run",
    "samestep.spawn",
    "accelerate.notebook_launcher",
    "accelerate.debug_launcher",
    "detectron2.engine.launch",
    "ray.train.torch.TorchTrainer",
    "ray.train.lightning",
    "torchrunx",
)
SPAWNERS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
"""Ways to start numbered processes; the number is the rank, unless the script sets another one."""

PROCESSES = (
    "torch.multiprocessing.Process",
    "multiprocessing.Process",
    "torch.multiprocessing.get_context.Process",
    "multiprocessing.get_context.Process",
)
"""Ways to start processes for any purpose; they are workers if the script sets their ranks."""

NATIVE = (
    *INIT_PROCESS_GROUP,
    "torch.distributed.init_device_mesh",
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.rpc.init_rpc",
    "torch.distributed.fsdp",
    "torch.distributed._composable",
    "torch.distributed.elastic.multiprocessing.errors.record",
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
    "horovod.tensorflow.init",
    "horovod.tensorflow.keras.init",
    "horovod.keras.init",
    "composer.Trainer",
    "composer.trainer.Trainer",
    "ignite.distributed",
    "transformers.Trainer",
    "transformers.Seq2SeqTrainer",
    "transformers.trainer.Trainer",
    "transformers.trainer_seq2seq.Seq2SeqTrainer",
    "trl",
    "timm.utils.init_distributed_device",
    "mmengine.runner.Runner",
    "mmengine.dist.init_dist",
    "colossalai.launch_from_torch",
    "fairscale.nn",
    "megatron",
    "torchtitan",
    "jax.distributed.initialize",
    "mpi4py",
)

_KNOWN = frozenset(name.partition(".")[0] for name in (*LAUNCHES, *SPAWNERS, *PROCESSES, *NATIVE))


@dataclass(frozen=True, slots=True)
class Evidence:
    """A call that shows the kind of a script.

    >>> str(Evidence(Path("train.py"), 12, "torch.distributed.init_process_group"))
    'train.py:12 torch.distributed.init_process_group'
    """

    file: Path
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line} {self.name}"


@dataclass(frozen=True, slots=True)
class ScriptKind:
    """The kind of a script.

    Args:
        kind: see the module's table.
        evidence: first call that shows the kind; None for a serial script.
        joins: whether the script calls `samestep.join`.
    """

    kind: Kind
    evidence: Evidence | None = None
    joins: bool = False


def classify(script: Path, *, roots: Sequence[Path] = ()) -> ScriptKind:
    """Return the kind of `script`, from its source and that of the user's modules that it imports.

    In doubt a script is native: if it were classified as one that starts its own workers, it would run on one
    worker only.

    Args:
        script: the file that runs as ``__main__``.
        roots: folders of the user's code in which imports are searched; by default the script's folder.

    Raises:
        UsageError: the script is not valid Python.
    """
    native, numbered, processes = None, None, None
    by_hand, own_ranks, joins = False, False, False
    try:
        for file, tree in user_modules(script, roots or [script.parent]):
            names, nodes = Names(tree), executed_nodes(tree, is_main=file is script)
            own_ranks = own_ranks or sets_rank(nodes, names)
            for name, line in used_names(nodes, names):
                use = Evidence(file, line, name)
                if is_one_of(name, LAUNCHES):
                    return ScriptKind("spawns", use)
                numbered = numbered or (use if is_one_of(name, SPAWNERS) else None)
                processes = processes or (use if is_one_of(name, PROCESSES) else None)
                native = native or (use if is_one_of(name, NATIVE) else None)
                by_hand = by_hand or is_one_of(name, INIT_PROCESS_GROUP)
                joins = joins or name == "samestep.join"
    except (RecursionError, MemoryError):  # an expression is too long or too deep for Python's parser
        return ScriptKind("native")
    if numbered and (own_ranks or not by_hand):
        return ScriptKind("spawns", numbered)
    if processes and own_ranks and by_hand:
        return ScriptKind("spawns", processes)
    return ScriptKind("native", native, joins) if native else ScriptKind("serial")


def user_modules(script: Path, roots: Sequence[Path]) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the script and the user's modules that it imports, breadth-first."""
    waiting = deque([script])
    seen = {script.resolve()}
    imported = ImportedModules(roots, _KNOWN)
    while waiting:
        file = waiting.popleft()
        tree = _parsed(file, is_script=file is script)
        if tree is None:
            continue
        yield file, tree
        for module in imported.of(tree, file):
            if len(seen) < MAX_FILES and module.resolve() not in seen:
                seen.add(module.resolve())
                waiting.append(module)


def _parsed(file: Path, *, is_script: bool) -> ast.Module | None:
    try:
        return ast.parse(read_bytes(file, most=TEXT_BYTES), filename=str(file))
    except (SyntaxError, ValueError) as error:
        if not is_script:
            return None  # Python reports it if the script imports the module
        where = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(f"{file}{where} is not valid Python: {why}.") from None
    except OSError as error:
        if not is_script:
            return None
        raise UsageError(f"cannot read {file}: {error.strerror}.") from None


def is_one_of(name: str, table: tuple[str, ...]) -> bool:
    """Return whether a full name equals an entry of a table, or is below one."""
    return any(name == entry or name.startswith(f"{entry}.") for entry in table)
