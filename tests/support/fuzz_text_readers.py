"""Readers of variables, lists of hosts, flags, and names of models and data, tested with wrong content."""

import json
from functools import cache
from pathlib import Path

from support.fuzz_mutations import ABSURD, as_json
from support.fuzz_reader import Reader, command
from support.recordings import RECORDINGS

# --- variables ------------------------------------------------------------------------------------


@cache
def _names():
    """Return all variables that samestep reads of launchers."""
    from samestep.launchers.registry import LAUNCHERS, UNKNOWN

    found = {"OMP_NUM_THREADS", "SAMESTEP_THREADS", "PMI_FD", "PET_NNODES", "PET_NODE_RANK", "MASTER_ADDR"}
    found |= {"PET_NPROC_PER_NODE", "MASTER_PORT", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_HET_SIZE"}
    found |= {"SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"}
    found |= {"SLURM_GPUS_ON_NODE", "SLURM_GPUS", "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "SLURMD_NODENAME"}
    found |= {"OMPI_MCA_orte_node_regex", "OMPI_MCA_orte_num_nodes", "TORCHELASTIC_RESTART_COUNT"}
    found |= {"CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"}
    found |= {name for pair in UNKNOWN for name in pair if name}
    for row in LAUNCHERS:
        for group in (
            row.rank,
            row.size,
            row.local_rank,
            row.local_size,
            row.node,
            row.nodes,
            row.job,
            *row.proof,
        ):
            found |= set(group)
        found |= {row.layout, row.hosts} - {""}
    return sorted(found)


_HOSTS = (
    "node[0-999999999]",
    "a[0-99999999999999999999]",
    "a[1-2][1-2]",
    "a[" * 3000,
    "a[1" + ",1" * 5000 + "]",
    "[0-9]" * 12,
    "a[0-65535]b[0-65535]",
    "a[01-3]",
    "a[3-1]",
    "a[]",
    "a]",
    "a[\u0663-\u0665]",
    "a[1-2",
    ",",
    ",,a",
    "a[0-1]x[",
    "n[" + "9" * 5000 + "]",
    "2(x999999999)",
    "2(x2),1",
    "1(x0)",
    "0",
    "2(x",
    "٣(x٢)",
    "1" * 5000 + "(x2)",
    "1,1,1,1",
    "login,n[2:8-9]@0(3)",
    "n[2:8-99999999999]@0(3)",
    "n[99999:8-9]",
    "n[2:-]",
    "n[2:8-9,-]",
    "@",
    "",
    "n[9999999999:8]",
    "n[2:9-8]@0(2)",
)


def _wrong_environment(draw):
    found = dict(draw.choice(RECORDINGS).environment)
    for _ in range(draw.choice((1, 1, 2, 4))):
        name = draw.choice([*found, *_names()])
        if draw.random() < 0.1:
            found.pop(name, None)
        else:
            found[name] = draw.choice(_HOSTS if draw.random() < 0.3 else ABSURD)
    return as_json(found)


def _read_environment(content):
    """Read the variables in every way that samestep reads them."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return
    if isinstance(found, dict):
        _detect({str(name): value for name, value in found.items() if isinstance(value, str)})


def _detect(env):
    from samestep.base.machine.description import cpu_share
    from samestep.launchers.detect import detect, refuse_incomplete
    from samestep.launchers.detect_task import open_mpi_first, refuse_pods
    from samestep.launchers.processors import guess_sharing, passed_threads, threads_per_rank
    from samestep.ranks.rendezvous.endpoint import choose
    from samestep.run.rerun import allocation
    from samestep.scaling.sweep.local_runs import slurm_capacity

    found = detect(env)
    place = found.place
    assert 0 <= place.rank < place.size, place
    first = None
    for step in (
        lambda: refuse_pods(env, found),
        lambda: refuse_incomplete(env) if found.launcher == "single" else None,
        lambda: choose(found, ancestors=lambda: iter(())),
        lambda: open_mpi_first(env),
        lambda: allocation(env),
        lambda: slurm_capacity(env),
        lambda: passed_threads(env),
        lambda: guess_sharing(env, cpu_share(), local_size=place.local_size),
        lambda: threads_per_rank(
            env, cpu_share(), local_size=place.local_size, sharing=place.local_size, launcher=found.launcher
        ),
    ):
        first = first or _error_of(step)
    if first is not None:
        raise first


def _error_of(step):
    from samestep.base.errors import Error

    try:
        step()
    except Error as error:
        return error
    return None


def _read_list(content):
    from samestep.launchers.hostlist import hosts, tasks_per_node

    text = content.decode("utf-8", "surrogateescape")
    errors = (_error_of(lambda: hosts(text)), _error_of(lambda: tasks_per_node(text)))
    if all(errors):  # one of the two is not for such a list
        raise errors[0]


def _lists():
    return [one.encode() for one in ("node[0-1,3],gpu-[08-09]", "rack[1-2]n[0-1]", "2(x2),1", "n1,n2,n3")]


# --- the command line -----------------------------------------------------------------------------


_SCRIPT = str(Path(__file__).with_name("fuzz_mutations.py"))
"""Any Python file: it is looked at, and never run."""

_COMMANDS = {
    "train": ("train", "digits", "--out", "/nowhere/out"),
    "run": ("run", "-n", "2", "--dry-run"),
    "scale": ("scale", "--dry-run"),
    "verify": ("verify",),
    "submit slurm": ("submit", "slurm", "--dry-run"),
    "bench all-reduce": ("bench", "all-reduce", "-n", "2"),
    "bench step": ("bench", "step", "-n", "2"),
    "doctor": ("doctor",),
    "data": ("data", "check"),
}
_WITH_SCRIPT = ("run", "scale", "verify", "submit slurm")


@cache
def _options():
    """Return the flags that take a value, by command."""
    import typer

    from samestep.cli.main import application

    found = {}
    for name in _COMMANDS:
        verb, *rest = name.split()
        group = typer.main.get_command(application(verb)).commands[verb]
        one = group.commands[rest[0]] if rest else group
        found[name] = [
            param.opts[-1]
            for param in one.params
            if param.param_type_name == "option" and not param.is_flag and not param.secondary_opts
        ]
    return found


_SPECS = (
    "resnet9:99999999",
    "resnet9:9" + "9" * 300,
    "resnet9:٣",
    "resnet9:0",
    "resnet9:-1",
    "resnet9:",
    "resnet9:1e3",
    "resnet9:4000",
    "resnet18:3",
    "synthetic:3x224x224,1000,99999999999",
    "synthetic:99999x99999x99999,1,1",
    "synthetic:3x8x8,99999999999,4",
    "synthetic:٣x8x8",
    "synthetic:3x8x8,10,0",
    "synthetic:" + "9" * 5000 + "x1x1",
    "synthetic:3x1x1,2,2",
    "synthetic:1x100000x100000,10,10",
    "folder@999999999",
    "folder@٣",
    "folder@0",
    "folder@" + "9" * 5000,
    "torchvision:CIFAR10@99999999999",
    "synthetic:3x8x8,10,64",
    "torchvision:",
)
"""Models and data sets with sizes."""


def _wrong_flags(draw):
    name = draw.choice(sorted(_COMMANDS))
    given = []
    for _ in range(draw.choice((1, 1, 2))):
        flag = draw.choice(_options()[name] or ["--data-dir"])
        pool = _SPECS if flag in ("--model", "--data") and draw.random() < 0.8 else (*ABSURD, *_PATHS)
        given.append(f"{flag}={draw.choice(pool)}")
    if name == "data":
        given.append(draw.choice(_SPECS))
    if name == "train" and draw.random() < 0.3:
        given.append(f"--{draw.choice(('model', 'data'))}={draw.choice(_SPECS)}")
    return as_json([name, given])


_PATHS = (
    "/dev/zero",
    "/dev/full",
    "/proc/self/mem",
    "/",
    "/dev/null/x",
    "nowhere/at/all",
    "a" * 5000,
    "/dev/stdin",
)


def _right_flags():
    return [as_json(["train", ["--epochs=2"]]), as_json(["run", ["--threads=1"]])]


def _read_flags(content):
    try:
        name, given = json.loads(content)
        head = _COMMANDS[name]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not isinstance(given, list):
        return None
    script = [_SCRIPT] if name in _WITH_SCRIPT else []
    return command(*head, *(str(one) for one in given if "\0" not in str(one)), *script)


def begin_flags():
    """Replace the functions that start processes, so that only the checks before are tested."""
    import samestep.bench.step_times
    import samestep.cli
    import samestep.verify.verification
    from samestep.cli import bench, doctor, train, verify
    from samestep.cli import run as run_module
    from samestep.run import execution

    for module in (execution, bench, train, doctor, run_module):
        for name in (
            "execute",
            "_start",
            "_measure_collective",
            "_measure_steps",
            "run_monitored",
            "fix_hash_seed",
            "bind_worker",
        ):
            if hasattr(module, name):
                setattr(module, name, lambda *_, **__: 0)
    doctor.run_checks = _Nothing
    samestep.verify.verification.Verification = _Nothing
    verify._prepare = lambda size: None
    verify._print = lambda report: None
    _options()


class _Nothing:
    """Replaces functions that start processes."""

    report, verdict, all_findings, unreached, rank = None, "same", (), True, 0

    def __init__(self, *_, **__):
        pass

    def run(self):
        return self

    def agree_on_exit_code(self):
        return 0

    def as_json(self):
        return {}


WORDS = (
    Reader(
        name="environment",
        read=_read_environment,
        wrong=_wrong_environment,
        valid=lambda: [as_json(one.environment) for one in RECORDINGS],
    ),
    Reader(
        name="hostlist",
        read=_read_list,
        valid=_lists,
        wrong=lambda draw: draw.choice(_HOSTS).encode("utf-8", "surrogateescape"),
    ),
    Reader(name="flags", read=_read_flags, valid=_right_flags, wrong=_wrong_flags, begin=begin_flags),
)
