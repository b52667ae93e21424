"""Classifies a script by its source: it starts its own workers, joins a process group, or is serial.

======== ============================================================ ====================================
kind     the script, or a module that it imports                      how samestep runs it
======== ============================================================ ====================================
spawns   starts its own workers and sets their ranks                  once
native   sets up `torch.distributed`, or asks a library for several   on every worker
         devices
serial   neither; a library's Trainer on one device is serial         once, its models' calls split
======== ============================================================ ====================================

A script that joins a process group only if a launcher has set its variables is serial where there is none. So
is one that asks a training library for one device, or says nothing. One that asks for several, or names a
strategy for them, is native: the library splits the work.

Only code that can be called counts: see `samestep.launch.source.names`.
"""

import ast
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from samestep.base.errors import UsageError
from samestep.base.regular_files import TEXT_BYTES, read_bytes
from samestep.launch.source.launcher_variables import (
    INIT_PROCESS_GROUP,
    VariableRead,
    reads_of,
    reads_rank,
    without_launcher,
)
from samestep.launch.source.modules import ImportedModules
from samestep.launch.source.names import (
    Module,
    Names,
    assigned,
    is_one_of,
    names_of,
    prefixed,
    reached_nodes,
    used_names,
)

_LIGHTNING = (
    *prefixed(
        "lightning", "Trainer", "Fabric", "fabric.Fabric", "pytorch.Trainer", "pytorch.cli.LightningCLI"
    ),
    *prefixed("pytorch_lightning", "Trainer", "cli.LightningCLI"),
    "lightning_fabric.Fabric",
)
_TRANSFORMERS = (
    *prefixed("transformers", "Trainer", "Seq2SeqTrainer"),
    *prefixed("transformers", "trainer.Trainer", "trainer_seq2seq.Seq2SeqTrainer"),
    "trl",
)
_ACCELERATE = prefixed("accelerate", "Accelerator", "PartialState")
_COMPOSER = prefixed("composer", "Trainer", "trainer.Trainer")

LIBRARIES = (
    *_LIGHTNING,
    *_TRANSFORMERS,
    *_ACCELERATE,
    *_COMPOSER,
    "timm.utils.init_distributed_device",
    "mmengine.runner.Runner",
)
"""Calls that train on one device, or on several if they are asked to."""

_STRATEGIES = (
    *prefixed("lightning", "pytorch.strategies", "fabric.strategies"),
    *prefixed("pytorch_lightning", "strategies", "plugins.DDPPlugin"),
    "lightning_fabric.strategies",
    *prefixed("accelerate", "DistributedDataParallelKwargs", "utils.DistributedDataParallelKwargs"),
    *prefixed("accelerate", "FullyShardedDataParallelPlugin", "utils.FullyShardedDataParallelPlugin"),
    *prefixed("accelerate", "DeepSpeedPlugin", "utils.DeepSpeedPlugin", "ParallelismConfig"),
)
"""Calls that create a strategy for several devices."""
_ONE_DEVICE_STRATEGY = "SingleDevice"

_UNSET = ("", "none", "null", "false", "no", "0", "-1")
_Asks = Callable[[object], bool]  # whether the value of an argument asks for several devices


def _count(value: object) -> bool:
    """Return whether a number of devices, a list of them, or a text of either is of several."""
    if isinstance(value, str):
        parts = [part for part in value.strip("[]() ").split(",") if part]
        return len(parts) > 1 or (value.lstrip("-").isdecimal() and _count(int(value)))
    if isinstance(value, (list, tuple)):
        return len(value) > 1
    return isinstance(value, int) and (value > 1 or value == -1)


def _strategy(value: object) -> bool:
    return _is_set(value) and isinstance(value, str) and value not in ("auto", "single_device", "single_tpu")


def _is_set(value: object) -> bool:
    return str(value).lower() not in _UNSET and bool(value)


_DEVICES: Mapping[str, _Asks] = {
    **dict.fromkeys(("devices", "num_nodes", "gpus", "num_processes", "tpu_cores"), _count),
    "strategy": _strategy,
    "accelerator": lambda value: isinstance(value, str) and value.startswith("ddp"),
}
_SHARDING: Mapping[str, _Asks] = {
    **dict.fromkeys(
        (
            *("fsdp", "fsdp_config", "fsdp_plugin", "deepspeed", "deepspeed_config", "deepspeed_plugin"),
            *("ddp_backend", "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"),
            *("megatron_lm_plugin", "parallelism_config", "torch_tp_plugin"),
        ),
        _is_set,
    ),
    "tp_size": _count,
}
_ARGUMENTS: tuple[tuple[tuple[str, ...], Mapping[str, _Asks]], ...] = (
    (_LIGHTNING, _DEVICES),
    ((*_TRANSFORMERS, *_ACCELERATE, *_COMPOSER, "transformers"), _SHARDING),
    (("mmengine.runner.Runner",), {"launcher": _strategy}),
)
"""Arguments of calls, by name, that can ask for several devices."""
_FLAGS: Mapping[str, _Asks] = {**_DEVICES, **_SHARDING, "launcher": _strategy}
"""Flags of a program, from which such arguments are made."""
_FROM_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def _asks_for_several(nodes: Iterable[ast.AST], names: Names) -> Iterator[tuple[str, int]]:
    """Yield each call and its line by which code asks a library for several devices.

    A value that is not in the text, such as one from a configuration file, asks for nothing. A launcher's
    variable that is read without a default does: the code cannot run without a launcher.
    """
    for node in nodes:
        if isinstance(node, ast.Call):
            for name in names.full(node.func):
                if is_one_of(name, _STRATEGIES) and _ONE_DEVICE_STRATEGY not in name:
                    yield name, node.lineno
                yield from ((f"{name}({word}=..)", node.lineno) for word in _asking_arguments(name, node))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if key in _FROM_LAUNCHERS and "os.environ" in names.full(node.value):
                yield f"os.environ[{key!r}]", node.lineno


def _flag_asking_for_several(arguments: Sequence[str]) -> str:
    """Return the flag of a program's arguments that asks a library for several devices; empty without one."""
    for position, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--"):
            continue
        following = [value for value in arguments[position + 1 : position + 2] if not value.startswith("--")]
        text = value if equals else following[0] if following else "True"
        asks = _FLAGS.get(flag.lstrip("-").rpartition(".")[2].replace("-", "_"))
        if asks is not None and asks(text):
            return flag
    return ""


def _asking_arguments(name: str, call: ast.Call) -> Iterator[str]:
    for calls, arguments in _ARGUMENTS:
        if not is_one_of(name, calls):
            continue
        for keyword in call.keywords:
            asks = arguments.get(keyword.arg or "")
            if asks is not None and asks(_literal(keyword.value)):
                yield str(keyword.arg)


def _literal(value: ast.expr) -> object:
    """Return the value of a literal; None for any other expression."""
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


Kind: TypeAlias = Literal["native", "spawns", "serial"]
_MAX_FILES = 300
"""Maximum number of modules that are read, which takes time at each start; the nearest imports come first."""

# Names below an entry match as well.
_LAUNCHES = (
    *prefixed("torch.distributed", "launcher", "run"),
    "samestep.spawn",
    *prefixed("accelerate", "notebook_launcher", "debug_launcher"),
    "detectron2.engine.launch",
    *prefixed("ray.train", "torch.TorchTrainer", "lightning"),
    "torchrunx",
)
_SPAWNERS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
"""Ways to start numbered processes; the number is the rank, unless the script sets another one."""

_PROCESSES = (
    "torch.multiprocessing.Process",
    "multiprocessing.Process",
    "torch.multiprocessing.get_context.Process",
    "multiprocessing.get_context.Process",
)
"""Ways to start processes for any purpose; they are workers if the script sets their ranks."""

NATIVE = (
    *INIT_PROCESS_GROUP,
    *prefixed("torch.distributed", "rpc.init_rpc", "fsdp", "init_device_mesh", "DeviceMesh"),
    *prefixed("torch.distributed.device_mesh", "init_device_mesh", "DeviceMesh"),
    *prefixed("torch.distributed.tensor", "init_device_mesh", "DeviceMesh"),
    *prefixed("torch.distributed._tensor", "init_device_mesh", "device_mesh", "DeviceMesh"),
    *prefixed("torch.distributed", "_composable", "elastic.multiprocessing.errors.record"),
    *prefixed("torch.nn.parallel", "DistributedDataParallel", "distributed.DistributedDataParallel"),
    "samestep.join",
    *prefixed("deepspeed", "initialize", "init_distributed"),
    *prefixed("horovod", "torch.init", "tensorflow.init", "tensorflow.keras.init", "keras.init"),
    "ignite.distributed",
    "mmengine.dist.init_dist",
    "colossalai.launch_from_torch",
    "fairscale.nn",
    "megatron",
    "torchtitan",
    "jax.distributed.initialize",
    "mpi4py",
)

_TABLES = (_LAUNCHES, _SPAWNERS, _PROCESSES, NATIVE, LIBRARIES)
_KNOWN = frozenset(name.partition(".")[0] for table in _TABLES for name in table)


_RANK_POSITION = 4  # index of ``rank`` in the arguments of `torch.distributed.init_process_group`
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
    evidence: Evidence | None = None
    """First call that shows the kind; of a serial script, that of a training library."""
    joins: bool = False  # whether the script calls `samestep.join`
    reads: tuple[VariableRead, ...] = ()
    """Lines of a native script that read variables of Slurm or MPI, if it reads none of torchrun's."""
    creates_group: bool = False  # whether a script that starts its own workers creates a process group
    optional: Evidence | None = None
    """First call of a serial script's own data parallelism, which it uses only under a launcher."""

    @property
    def starts_processes(self) -> bool:
        """Whether it starts a process for each worker by hand."""
        return (
            self.kind == "spawns" and self.evidence is not None and is_one_of(self.evidence.name, _PROCESSES)
        )

    @property
    def has_forkable_workers(self) -> bool:
        """Whether it starts its workers by `torch.multiprocessing`; samestep can fork them in its place."""
        spawns = self.kind == "spawns" and self.evidence is not None and self.evidence.name in _SPAWNERS
        return spawns or self.starts_processes


def classify(
    script: Path,
    *,
    roots: Sequence[Path] = (),
    arguments: Sequence[str] = (),
    is_set: Callable[[str], bool] = lambda _: False,
) -> ScriptKind:
    """Return the kind of `script`, from its source and that of the user's modules that it imports.

    In doubt a script is native: if it were classified as one that starts its own workers, it would run on one
    worker only.

    Args:
        script: the script.
        roots: folders of the user's code, in which imports are searched; by default the script's folder.
        arguments: the script's command-line arguments, which may ask a library for several devices.
        is_set: whether a launcher has set a variable, by which some scripts choose what they do.

    Raises:
        UsageError: the script is not valid Python.
    """
    try:
        modules = list(user_modules(script, roots or [script.parent]))
        flag = _flag_asking_for_several(arguments)
        kind = _kind_of(modules, script, flag)
    except (RecursionError, MemoryError):  # an expression is too long or too deep for Python's parser
        return ScriptKind("native")
    if kind.kind == "native":
        with suppress(RecursionError):  # as above, of a copy
            alone = _kind_of(without_launcher(modules, is_set, arguments), script, flag)
            kind = replace(alone, optional=kind.evidence) if alone.kind == "serial" else kind
    return kind


def _kind_of(modules: Sequence[Module], script: Path, flag: str) -> ScriptKind:
    reached, names = reached_nodes(modules, main=script), names_of(modules)
    findings = _Findings()
    for file, _ in modules:
        _search(file, reached[file], names[file], findings)
    return findings.kind(flag)


@dataclass(slots=True)
class _Findings:
    """First calls of each kind in the modules of a script."""

    uses: dict[tuple[str, ...], Evidence] = field(default_factory=dict)
    """First call of each table of names."""
    several: Evidence | None = None
    creates_group: bool = False
    sets_ranks: bool = False
    joins: bool = False
    reads: list[VariableRead] = field(default_factory=list)
    reads_rank: bool = False

    def kind(self, flag: str) -> ScriptKind:
        """Return the kind of the script; `flag` is one of its own that asks a library for several devices."""
        launches, numbered, processes, native, library = map(self.uses.get, _TABLES)
        if launches:
            return ScriptKind("spawns", launches)
        if numbered and (self.sets_ranks or not self.creates_group):
            return ScriptKind("spawns", numbered, creates_group=self.creates_group)
        if processes and self.sets_ranks and self.creates_group:
            return ScriptKind("spawns", processes, creates_group=True)
        if native:
            return ScriptKind("native", native, joins=self.joins, reads=self.needed())
        if library and (self.several or flag):
            return ScriptKind("native", self.several or library, reads=self.needed())
        return ScriptKind("serial", library)

    def needed(self) -> tuple[VariableRead, ...]:
        """Return the lines that read variables of other launchers, for lack of torchrun's."""
        return () if self.reads_rank else tuple(self.reads)


def _search(file: Path, nodes: list[ast.AST], names: Names, findings: _Findings) -> None:
    """Add to the findings what the code of one module shows."""
    for name, line in used_names(nodes, names):
        for table in _TABLES:
            if is_one_of(name, table):
                findings.uses.setdefault(table, Evidence(file, line, name))
        findings.creates_group = findings.creates_group or is_one_of(name, INIT_PROCESS_GROUP)
        findings.joins = findings.joins or name == "samestep.join"
    findings.reads += reads_of(file, nodes, names)
    findings.reads_rank = findings.reads_rank or reads_rank(nodes, names)
    findings.sets_ranks = findings.sets_ranks or _sets_rank(nodes, names)
    several = next(_asks_for_several(nodes, names), None)
    findings.several = findings.several or (Evidence(file, several[1], several[0]) if several else None)


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
            if len(seen) < _MAX_FILES and module.resolve() not in seen:
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


def _sets_rank(nodes: list[ast.AST], names: Names) -> bool:
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
