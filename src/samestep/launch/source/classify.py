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
from samestep.launch.source.modules import ImportedModules
from samestep.launch.source.names import Names, assigned, executed_nodes, used_names

Kind: TypeAlias = Literal["native", "spawns", "serial"]
MAX_FILES = 300
"""Maximum number of modules that are read."""

INIT_PROCESS_GROUP = (
    "torch.distributed.init_process_group",
    "torch.distributed.distributed_c10d.init_process_group",
)


def _names(package: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{package}.{name}" for name in names)


# Names below an entry match as well.
LAUNCHES = (
    *_names("torch.distributed", "launcher", "run"),
    "samestep.spawn",
    *_names("accelerate", "notebook_launcher", "debug_launcher"),
    "detectron2.engine.launch",
    *_names("ray.train", "torch.TorchTrainer", "lightning"),
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
    *_names("torch.distributed", "init_device_mesh", "device_mesh.init_device_mesh", "rpc.init_rpc", "fsdp"),
    *_names("torch.distributed", "_composable", "elastic.multiprocessing.errors.record"),
    *_names("torch.nn.parallel", "DistributedDataParallel", "distributed.DistributedDataParallel"),
    "samestep.join",
    *_names("accelerate", "Accelerator", "PartialState"),
    *_names("lightning", "Trainer", "Fabric", "fabric.Fabric", "pytorch.Trainer", "pytorch.cli.LightningCLI"),
    "lightning_fabric.Fabric",
    *_names("pytorch_lightning", "Trainer", "cli.LightningCLI"),
    *_names("deepspeed", "initialize", "init_distributed"),
    *_names("horovod", "torch.init", "tensorflow.init", "tensorflow.keras.init", "keras.init"),
    *_names("composer", "Trainer", "trainer.Trainer"),
    "ignite.distributed",
    *_names("transformers", "Trainer", "Seq2SeqTrainer"),
    *_names("transformers", "trainer.Trainer", "trainer_seq2seq.Seq2SeqTrainer"),
    "trl",
    "timm.utils.init_distributed_device",
    *_names("mmengine", "runner.Runner", "dist.init_dist"),
    "colossalai.launch_from_torch",
    "fairscale.nn",
    "megatron",
    "torchtitan",
    "jax.distributed.initialize",
    "mpi4py",
)

_KNOWN = frozenset(name.partition(".")[0] for name in (*LAUNCHES, *SPAWNERS, *PROCESSES, *NATIVE))


_RANK_POSITION = 4
"""Index of ``rank`` in the arguments of `torch.distributed.init_process_group`."""
_SET_BY_LAUNCHERS = ("RANK", "MASTER_PORT")


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
    """The kind of a script."""

    kind: Kind  # see the module's table
    evidence: Evidence | None = None  # first call that shows the kind; None for a serial script
    joins: bool = False  # whether the script calls `samestep.join`


def classify(script: Path, *, roots: Sequence[Path] = ()) -> ScriptKind:
    """Return the kind of `script`, from its source and that of the user's modules that it imports.

    Imports are searched in `roots`, folders of the user's code; by default in the script's folder.

    In doubt a script is native: if it were classified as one that starts its own workers, it would run on one
    worker only.

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


def sets_rank(nodes: list[ast.AST], names: Names) -> bool:
    """Return whether a rank, or the rendezvous port, is set to a value other than the launcher's.

    A value from the environment is the launcher's.
    """
    read = {name for node in nodes for name in _from_environment(node, names)}
    return any(
        not _reads_environment(value, names, read) for node in nodes for value in _set_ranks(node, names)
    )


def _set_ranks(node: ast.AST, names: Names) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call) and any(name in INIT_PROCESS_GROUP for name in names.full(node.func)):
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "rank")
        yield from node.args[_RANK_POSITION : _RANK_POSITION + 1]
    for target, value in assigned(node):
        if (
            isinstance(target, ast.Subscript)
            and isinstance(target.slice, ast.Constant)
            and target.slice.value in _SET_BY_LAUNCHERS
            and "os.environ" in names.full(target.value)
        ):
            yield value


def _from_environment(node: ast.AST, names: Names) -> Iterator[str]:
    for target, value in assigned(node):
        if isinstance(target, ast.Name) and _reads_environment(value, names, set()):
            yield target.id


def _reads_environment(value: ast.expr, names: Names, read: set[str]) -> bool:
    """Return whether a value is read from the environment, directly or through a name in `read`."""
    return any(
        (isinstance(node, ast.Name) and node.id in read)
        or any(name in ("os.environ", "os.getenv") for name in names.full(node))
        for node in ast.walk(value)
        if isinstance(node, (ast.Name, ast.Attribute))
    )
