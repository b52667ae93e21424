"""Finds how a script depends on its launcher's variables: which it reads, and what it runs without them.

A script may take its rank from a variable of the launcher that it was written for: of Slurm or MPI. Under
another launcher the variable is missing, and the script fails, or takes the default: then each process is
rank 0 of one. `samestep run` gives such variables values.

Many scripts train on one device, and set up a process group only under torchrun::

    ddp = int(os.environ.get("RANK", -1)) != -1         False
    if ddp:
        init_process_group("nccl")                      not run

or only with an option that the command line may not have::

    parser.add_argument("--local_rank", type=int, default=-1)
    if parser.parse_args().local_rank != -1:            False
"""

import ast
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from samestep.base.env import Environment
from samestep.base.place import Place
from samestep.launch.source.names import Module, Names, assigned, names_of
from samestep.launchers.registry import BY_NAME, FIELDS, LAUNCHERS

_PREFIXES = ("SLURM", "OMPI_", "PMI_", "PMIX_", "MV2_COMM_WORLD_", "MPI_LOCAL", "FLUX_TASK_", "FLUX_JOB_")
"""Beginnings of the variables that launchers other than torchrun set."""
_READERS = ("os.environ.get", "os.getenv")
VARIABLES_OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def is_of_launcher(name: str) -> bool:
    """Return whether a launcher sets a variable for each of its workers."""
    return name in (*VARIABLES_OF_TORCHRUN, "LOCAL_WORLD_SIZE", "GROUP_RANK") or name.startswith(_PREFIXES)


_LOOPBACK = "127.0.0.1"

_FURTHER = {
    "rank": ("MV2_COMM_WORLD_RANK",),
    "size": ("SLURM_NTASKS", "SLURM_NPROCS", "MV2_COMM_WORLD_SIZE"),
    "local_rank": ("OMPI_COMM_WORLD_NODE_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
    "local_size": (
        *("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"),
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
}
"""Variables of a field of a place that scripts read, and that no row of a launcher has."""
_ON_ONE_NODE = (
    *("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"),
    *("SLURMD_NODENAME", "SLURM_LAUNCH_NODE_IPADDR"),
)
"""Variables that hold the job's nodes, or the address of the first."""
_VALUES: Mapping[str, Callable[[Place], object]] = {
    name: operator.attrgetter(field)
    for field in FIELDS
    for names in (*(getattr(row, field) for row in LAUNCHERS), _FURTHER.get(field, ()))
    for name in names
    if name.startswith(_PREFIXES)
}


@dataclass(frozen=True, slots=True)
class VariableRead:
    """A line that reads a variable of another launcher.

    >>> str(VariableRead("SLURM_PROCID", Path("train.py"), 12))
    'train.py:12 reads SLURM_PROCID'
    """

    name: str
    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line} reads {self.name}"


def reads_rank(nodes: Iterable[ast.AST], names: Names) -> bool:
    """Return whether code reads torchrun's variables; then it needs none of another launcher's."""
    return any(name in VARIABLES_OF_TORCHRUN for name, _ in _reads(nodes, names))


def reads_of(file: Path, nodes: Iterable[ast.AST], names: Names) -> Iterator[VariableRead]:
    """Yield the lines of a module that read variables of Slurm or MPI."""
    for name, line in _reads(nodes, names):
        if name.startswith(_PREFIXES):
            yield VariableRead(name, file, line)


def _reads(nodes: Iterable[ast.AST], names: Names) -> Iterator[tuple[str, int]]:
    """Yield each variable that is read by its name, and the line."""
    for node in nodes:
        key: ast.expr | None = None
        if isinstance(node, ast.Call) and node.args and set(names.full(node.func)) & set(_READERS):
            key = node.args[0]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            key = node.slice if "os.environ" in names.full(node.value) else None
        name = key.value if isinstance(key, ast.Constant) else None
        if isinstance(node, (ast.Call, ast.Subscript)) and isinstance(name, str):
            yield name, node.lineno


def values_at(reads: Iterable[VariableRead], place: Place) -> dict[str, str]:
    """Return the variables that a script reads, with the values that their launcher would set."""
    names = {read.name for read in reads}
    values = {name: str(_VALUES[name](place)) for name in names if name in _VALUES}
    if place.nodes == 1:
        values |= {name: _LOOPBACK for name in names if name in _ON_ONE_NODE}
    return values


def values_beside(reads: Iterable[VariableRead], place: Place, environment: Environment) -> dict[str, str]:
    """Return the variables that a launcher's task needs besides those that its launcher has set.

    A launcher around that of the task (Slurm around mpirun) has set its variables for a task of its own, so
    all of them are replaced. All variables of a launcher are set if the script reads one of them, because a
    rank without the number of ranks is no place. Of the task's own launcher only missing variables are set:
    srun sets SLURM_NTASKS_PER_NODE only if it has that flag, and Lightning requires it.
    """
    row = BY_NAME[place.launcher]
    families = {_family(name) for name in (*row.rank, *row.size, *row.local_rank)}
    of_others = [read for read in reads if _family(read.name) not in families]
    wanted = {_family(read.name) for read in of_others}
    wanted |= {_family(name) for name in _VALUES if name in environment} - families
    values = {
        name: str(value(place))
        for name, value in _VALUES.items()
        if _family(name) in wanted or (_family(name) in families and name not in environment)
    }
    return values | values_at(of_others, place)


def _family(name: str) -> str:
    """Return the part of a variable's name that all variables of its launcher share."""
    return name.partition("_")[0]


INIT_PROCESS_GROUP = (
    "torch.distributed.init_process_group",
    "torch.distributed.distributed_c10d.init_process_group",
)
_GROUPS = ("torch.distributed.is_initialized", "torch.distributed.is_torchelastic_launched")
"""Functions that return False where there is no launcher, and no group."""
_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {"int": int, "bool": bool, "str": str}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_STORES = tuple(f"os.environ.{name}" for name in ("setdefault", "update", "__setitem__"))
_PARSERS = ("parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args")
_FLAGS: Mapping[str, bool] = {"store_true": False, "store_false": True}
"""The defaults of options without a value, by their actions."""
_EXITS = ("sys.exit", "os._exit", "exit", "quit")
_MOST_ROUNDS = 4
"""Rounds in which names get values from those of other names; the names of a longer chain are unknown."""


_ANY = "*"
"""Stands for a variable whose name is unknown."""
_UNKNOWN = object()
"""The value of an expression that does not follow from the launcher's variables alone."""


def without_launcher(
    modules: Sequence[Module], is_set: Callable[[str], bool], arguments: Sequence[str] = ()
) -> list[Module]:
    """Return the modules of a script without the branches that it takes only under a launcher.

    Args:
        modules: the files and trees of the script and of the modules that it imports.
        is_set: whether a launcher has set a variable; what depends on such a variable is kept.
        arguments: the script's arguments; an option of argparse that is not among them has its default.
    """
    names = names_of(modules)
    facts = _Facts({}, is_set, creates_group=False, arguments=arguments)
    stored: set[str] = set()
    for file, tree in modules:
        for node in ast.walk(tree):
            stored |= _stored_variables(node, names[file])
            if _replaces_arguments(node, names[file]):
                facts.arguments = None
            facts.creates_group = facts.creates_group or _creates_group(node, names[file])
    facts.is_set = lambda name: name in stored or _ANY in stored or is_set(name)
    for _ in range(_MOST_ROUNDS):
        known = _values(modules, names, facts)
        if known == facts.known:
            break
        facts.known = known
    return [(file, _Alone(names[file], facts).pruned(tree)) for file, tree in modules]


@dataclass(slots=True)
class _Facts:
    """The names and variables of a script whose values are known."""

    known: Mapping[str, Any]
    """The values of names, and of attributes as ``.name``."""
    is_set: Callable[[str], bool]
    """Whether a variable is set: by a launcher, or by the script itself."""
    creates_group: bool
    """Whether the script itself creates process groups, and no library for it."""
    arguments: Sequence[str] | None
    """The script's arguments; None if it may parse others, or change what it has parsed."""


def _stored_variables(node: ast.AST, names: Names) -> set[str]:
    """Return the variables of the environment that a node sets; `_ANY` if their names are unknown."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return {_text(node.slice)} if "os.environ" in names.full(node.value) else set()
    if isinstance(node, ast.Call):
        full = [*names.full(node.func)]
        if any(name in (*_STORES, "os.putenv") for name in full):
            return {_text(node.args[0]) if node.args else _ANY}
    return set()


def _creates_group(node: ast.AST, names: Names) -> bool:
    return isinstance(node, ast.Call) and any(name in INIT_PROCESS_GROUP for name in names.full(node.func))


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else _ANY


def _values(modules: Iterable[Module], names: Mapping[Any, Names], facts: _Facts) -> dict[str, Any]:
    """Return the values of the names and attributes that all assignments to them agree on."""
    values: defaultdict[str, list[Any]] = defaultdict(list)
    unknown: set[str] = set()
    for file, tree in modules:
        alone = _Alone(names[file], facts)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _method(node) == "add_argument":
                values[f".{_destination(node)}"].append(alone.default_of(node))
                continue
            unknown |= _bound_otherwise(node)
            for target, value in assigned(node):
                values[_name_of(target)].append(alone.value_of(value))
    agreed = {name: first for name, (first, *rest) in values.items() if all(value == first for value in rest)}
    return {
        name: value
        for name, value in agreed.items()
        if name and value is not _UNKNOWN and name not in unknown
    }


def _bound_otherwise(node: ast.AST) -> set[str]:
    """Return the names and attributes that a node binds to values that are not followed."""
    names: set[str] = set()
    if isinstance(node, ast.arg):
        names = {node.arg}
    elif isinstance(node, ast.alias):
        names = {node.asname or node.name}
    elif isinstance(
        node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
    ):
        names = {node.name or ""}
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.AugAssign, ast.comprehension)):
        names = {_name_of(target) for target in ast.walk(node.target)}
    elif isinstance(node, (ast.Tuple, ast.List)) and isinstance(node.ctx, ast.Store):
        names = {_name_of(target) for target in ast.walk(node)}
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        names = {_name_of(node.optional_vars)}
    elif isinstance(node, ast.ClassDef):  # a field of it may be an option
        fields = (target for statement in node.body for target, _ in assigned(statement))
        names = {node.name, *(f".{_name_of(field)}" for field in fields)}
    elif isinstance(node, ast.Call):  # ``setattr(args, "distributed", ...)``
        texts = map(_text, (*node.args, *(keyword.value for keyword in node.keywords)))
        names = {f".{_as_name(text)}" for text in texts}
    return names


def _as_name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _options(call: ast.Call) -> list[str]:
    """Return the names of an option of `argparse`, such as ``-d`` and ``--device``; none for a position."""
    return [text for text in map(_text, call.args) if text.startswith("-")]


def _destination(call: ast.Call) -> str:
    """Return the attribute in which `argparse` stores an argument."""
    name = _keyword(call, "dest")
    options = _options(call)
    long = [option for option in options if option.startswith("--")]
    return _as_name(_text(name) if name is not None else next(iter([*long, *options, _ANY])))


def _replaces_arguments(node: ast.AST, names: Names) -> bool:
    """Return whether a node lets a script parse other arguments than its own, or changes those parsed."""
    if isinstance(node, ast.Subscript):  # ``vars(args)[name] = value``
        return isinstance(node.ctx, ast.Store) and _is_namespace(node.value)
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Store) and "sys.argv" in names.full(node)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):  # ``setattr(args, name, value)``
        return node.func.id == "setattr" and _text(node.args[1] if node.args[1:] else node) == _ANY
    if not isinstance(node.func, ast.Attribute):
        return False
    changes = _method(node) == "update" and _is_namespace(node.func.value)
    parses_others = _method(node) in _PARSERS and bool(node.args or node.keywords)
    return (
        changes
        or parses_others
        or _method(node) == "set_defaults"
        or "sys.argv" in names.full(node.func.value)
    )


def _is_namespace(node: ast.expr) -> bool:
    """Return whether an expression is the dict of an object, such as ``vars(args)``."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "vars"
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def _name_of(node: ast.AST) -> str:
    """Return a name, or ``.name`` for an attribute; empty for another expression."""
    if isinstance(node, ast.Attribute):
        return f".{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _is_given(words: Sequence[str], option: str) -> bool:
    """Return whether arguments have an option, which argparse lets a user shorten."""
    if not option.startswith("--"):
        return any(word.startswith(option) for word in words)
    starts = (word.partition("=")[0] for word in words if word.startswith("--"))
    return any(len(start) > len("--") and option.startswith(start) for start in starts)


class _Alone(ast.NodeTransformer):
    """Replaces each branch of a module that depends on the launcher's variables by what is taken."""

    def __init__(self, names: Names, facts: _Facts) -> None:
        self._names, self._facts = names, facts

    def pruned(self, tree: ast.Module) -> ast.Module:
        """Return a module without the branches that are not taken; the given one is not changed."""
        pruned: ast.Module = self.visit(deepcopy(tree))
        return pruned

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Prune the parts of a node, and leave out what follows a return in a block."""
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                ends = [isinstance(statement, (ast.Return, ast.Raise)) for statement in block]
                del block[ends.index(True) + 1 if True in ends else len(block) :]
        return node

    def visit_If(self, node: ast.If) -> Any:
        """Return the statements of the branch that is taken."""
        value = self.value_of(node.test)
        taken = node.body if value else node.orelse
        if value is _UNKNOWN or (taken and self._ends_run(taken[-1])):  # it runs under a launcher only
            return self.generic_visit(node)
        statements: list[ast.stmt] = []
        for statement in taken:
            visited = self.visit(statement)
            statements += visited if isinstance(visited, list) else [visited]
        return statements or [ast.copy_location(ast.Pass(), node)]

    def _ends_run(self, statement: ast.stmt) -> bool:
        """Return whether a statement raises an error or ends the process."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call):
            is_name = isinstance(call.func, ast.Name) and call.func.id in _EXITS
            return is_name or any(name in _EXITS for name in self._names.full(call.func))
        return isinstance(statement, ast.Raise)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        """Return the expression that is computed."""
        value = self.value_of(node.test)
        if value is _UNKNOWN:
            return self.generic_visit(node)
        return self.visit(node.body if value else node.orelse)

    def value_of(self, node: ast.expr) -> Any:
        """Return the value of an expression by the launcher's variables, or else `_UNKNOWN`."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._facts.known.get(_name_of(node), _UNKNOWN)
        if isinstance(node, ast.Call):
            return self._called(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self.value_of(node.operand)
            return value if value is _UNKNOWN else not value
        if isinstance(node, ast.BoolOp):
            return self._combined(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node.left, node.ops[0], node.comparators[0])
        return self.value_of(node.value) if isinstance(node, ast.NamedExpr) else _UNKNOWN

    def default_of(self, call: ast.Call) -> Any:
        """Return the default of an option that the script's arguments do not have, or else `_UNKNOWN`."""
        options, words = _options(call), self._facts.arguments
        if words is None or not options or any(map(partial(_is_given, words), options)):
            return _UNKNOWN
        default, action = _keyword(call, "default"), _keyword(call, "action")
        if action is not None and _text(action) not in (*_FLAGS, "store"):
            return _UNKNOWN
        if default is None:
            return None if action is None else _FLAGS.get(_text(action))
        value = self._constant_or_value(default)
        is_converted = isinstance(value, str) and _keyword(call, "type") is not None  # numbers are not
        return _UNKNOWN if is_converted else value

    def _called(self, node: ast.Call) -> Any:
        full = [*self._names.full(node.func)]
        if any(name in _GROUPS for name in full):
            return False if self._facts.creates_group else _UNKNOWN
        if any(name in _READERS for name in full) and node.args and self._is_missing(node.args[0]):
            named = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
            default = next(iter([*node.args[1:], *named]), None)
            return None if default is None else self._constant_or_value(default)
        convert = _CONVERSIONS.get(node.func.id) if isinstance(node.func, ast.Name) else None
        value = self.value_of(node.args[0]) if convert and len(node.args) == 1 else _UNKNOWN
        if convert is None or value is _UNKNOWN:
            return _UNKNOWN
        with suppress(TypeError, ValueError, OverflowError):
            return convert(value)
        return _UNKNOWN

    def _combined(self, node: ast.BoolOp) -> Any:
        """Return the value of ``and`` or ``or``, which one operand may decide."""
        decides = isinstance(node.op, ast.Or)
        values = [self.value_of(operand) for operand in node.values]
        first = next((value for value in values if value is _UNKNOWN or bool(value) is decides), values[-1])
        is_decided = any(value is not _UNKNOWN and bool(value) is decides for value in values)
        # An unknown operand before the one that decides has the same truth, and another value.
        return decides if first is _UNKNOWN and is_decided else first

    def _compared(self, left: ast.expr, how: ast.cmpop, right: ast.expr) -> Any:
        if isinstance(how, (ast.In, ast.NotIn)):
            is_environment = any(name == "os.environ" for name in self._names.full(right))
            return isinstance(how, ast.NotIn) if is_environment and self._is_missing(left) else _UNKNOWN
        compare = _COMPARISONS.get(type(how))
        both = [self._constant_or_value(operand) for operand in (left, right)]
        is_constant = all(isinstance(operand, ast.Constant) for operand in (left, right))
        if compare is None or is_constant or any(value is _UNKNOWN for value in both):
            return _UNKNOWN
        with suppress(TypeError):
            return compare(*both)
        return _UNKNOWN

    def _constant_or_value(self, node: ast.expr) -> Any:
        with suppress(ValueError, TypeError):
            return ast.literal_eval(node)
        return self.value_of(node)

    def _is_missing(self, node: ast.expr) -> bool:
        """Return whether an expression is the name of a variable that no launcher has set."""
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            return False
        return is_of_launcher(node.value) and not self._facts.is_set(node.value)
