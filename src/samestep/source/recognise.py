"""What a script is, read from its text: does it bring its own workers, join others, or know of one only?

======== ===================================================== ============================
kind     the script, or a module beside it                     so it is
======== ===================================================== ============================
spawns   starts its own workers, each with a rank it sets itself started once, and left to it
native   sets up `torch.distributed` or uses what does         started on every worker
serial   neither                                               one worker's work
======== ===================================================== ============================
"""

import ast
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from samestep.base.errors import UsageError
from samestep.base.regular_files import TEXT_BYTES, read_bytes
from samestep.source.names import Names, running, used_names
from samestep.source.neighbours import Neighbours
from samestep.source.own_rank import BY_HAND, sets_rank

Kind: TypeAlias = Literal["native", "spawns", "serial"]

MAX_FILES = 300
"""Modules that are followed; what is not found in so many is taken to be absent."""

# Anything below a name counts as well.
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
NUMBERED = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
"""Ways to start processes that are told a number; unless another says the rank, it is theirs."""

PROCESSES = (
    "torch.multiprocessing.Process",
    "multiprocessing.Process",
    "torch.multiprocessing.get_context.Process",
    "multiprocessing.get_context.Process",
)
"""Ways to start processes for any purpose; they are workers where the script says their ranks."""

NATIVE = (
    *BY_HAND,
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

_KNOWN = frozenset(name.partition(".")[0] for name in (*LAUNCHES, *NUMBERED, *PROCESSES, *NATIVE))


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
    """What a script is.

    Args:
        kind: see above.
        evidence: the first call that shows it; none shows that it is serial.
        joins: whether it calls `samestep.join`.
    """

    kind: Kind
    evidence: Evidence | None = None
    joins: bool = False


def recognise(script: Path, *, roots: Sequence[Path] = ()) -> Recognised:
    """Say what `script` is, from its text and that of the modules it imports; nothing is run.

    Which processes are workers is judged cautiously: a native script that is taken to start its own would
    run on one worker only. A script that cannot be judged is native.

    Args:
        script: the file that runs as ``__main__``.
        roots: folders of the user's own code where its imports are looked for; by default beside it.

    Raises:
        UsageError: the script is not text that Python can read.
    """
    native, numbered, processes = None, None, None
    by_hand, own_ranks, joins = False, False, False
    try:
        for file, tree in own_modules(script, roots or [script.parent]):
            names, nodes = Names(tree), running(tree, is_main=file is script)
            own_ranks = own_ranks or sets_rank(nodes, names)
            for name, line in used_names(nodes, names):
                use = Evidence(file, line, name)
                if is_one_of(name, LAUNCHES):
                    return Recognised("spawns", use)
                numbered = numbered or (use if is_one_of(name, NUMBERED) else None)
                processes = processes or (use if is_one_of(name, PROCESSES) else None)
                native = native or (use if is_one_of(name, NATIVE) else None)
                by_hand = by_hand or is_one_of(name, BY_HAND)
                joins = joins or name == "samestep.join"
    except (RecursionError, MemoryError):  # an expression too long or too deep for Python's own parser
        return Recognised("native")
    if numbered and (own_ranks or not by_hand):
        return Recognised("spawns", numbered)
    if processes and own_ranks and by_hand:
        return Recognised("spawns", processes)
    return Recognised("native", native, joins) if native else Recognised("serial")


def own_modules(script: Path, roots: Sequence[Path]) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the script and then the modules of the user's own that it imports, nearest first."""
    waiting = deque([script])
    seen = {script.resolve()}
    neighbours = Neighbours(roots, _KNOWN)
    while waiting:
        file = waiting.popleft()
        tree = _parsed(file, is_script=file is script)
        if tree is None:
            continue
        yield file, tree
        for neighbour in neighbours.of(tree, file):
            if len(seen) < MAX_FILES and neighbour.resolve() not in seen:
                seen.add(neighbour.resolve())
                waiting.append(neighbour)


def _parsed(file: Path, *, is_script: bool) -> ast.Module | None:
    try:
        return ast.parse(read_bytes(file, most=TEXT_BYTES), filename=str(file))
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


def is_one_of(name: str, table: tuple[str, ...]) -> bool:
    """Return whether a full name is one of a table's, or lies below one."""
    return any(name == entry or name.startswith(f"{entry}.") for entry in table)
