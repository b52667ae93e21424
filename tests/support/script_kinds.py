"""Starts every kind of script under every launcher, and returns the outcome for the table.

The scripts are in ``tests/gallery_kinds``. Each takes 8 steps with 8 samples in each, on one rank or on two,
and prints one line with its steps, samples and weights. A second line, or another one, shows copies of the
training, a multiple of the batch, or ranks that train independently.
"""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from support.commands import Ended, finish
from support.mpi import mpirun
from support.nodes import Nodes
from support.script_runner import difference
from support.slurm import Slurm
from support.systems import missing

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "tests" / "gallery_kinds"
LIBRARIES = ROOT / ".venv-frameworks" / "bin" / "python"
DEADLINE_S = 110.0
SAME, REFUSED = "same", "refused"
_LINE = "steps "
_ERROR = "samestep: error: "
_RENDEZVOUS = ("MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500")
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Kind:
    """A row of the table.

    Args:
        title: its first cell.
        script: the words of the program; those that name a file of the gallery stand for its path.
        plain: what starts two ranks of it without samestep, or one process of a script that needs no more.
        one_node: further arguments of the script where its two ranks share a node.
        two_nodes: those where each has a node.
        libraries: whether it needs the interpreter of the training libraries.
        in_ci: the launchers of its row that CI starts every night.
    """

    title: str
    script: tuple[str, ...]
    plain: str = "python"
    one_node: tuple[str, ...] = ()
    two_nodes: tuple[str, ...] = ()
    libraries: bool = False
    in_ci: tuple[str, ...] = ()

    def words(self, nodes: int = 1) -> list[str]:
        """Return the arguments after samestep's flags for two ranks on that many nodes."""
        words = [str(GALLERY / word) if (GALLERY / word).is_file() else word for word in self.script]
        return [*words, *(self.one_node if nodes == 1 else self.two_nodes)]

    def python(self) -> str:
        """Return the interpreter that it needs; skip the test, or fail it, where that is missing."""
        if self.libraries and not LIBRARIES.exists():
            missing("frameworks", f"{LIBRARIES.parents[1]} is missing; `make test` creates it")
        return str(LIBRARIES if self.libraries else sys.executable)


_DDP = ("--strategy", "ddp")
KINDS = {
    "serial": Kind("a serial script", ("serial.py",), in_ci=("srun", "openmpi", "mpich")),
    "module": Kind("the same as a module: `-m package`", ("-m", "packaged"), in_ci=("openmpi",)),
    "ddp": Kind(
        "`DistributedDataParallel`, rank from `RANK` and `WORLD_SIZE` (`env://`)",
        ("ddp_env.py",),
        plain="torchrun",
        in_ci=("static", "torchrun"),
    ),
    "ddp-slurm": Kind(
        "the same, rank from `SLURM_PROCID` and `SLURM_NTASKS`",
        ("ddp_slurm.py",),
        plain="srun",
        in_ci=("srun", "openmpi"),
    ),
    "ddp-openmpi": Kind(
        "the same, rank from `OMPI_COMM_WORLD_RANK` and `OMPI_COMM_WORLD_SIZE`",
        ("ddp_openmpi.py",),
        plain="openmpi",
        in_ci=("sbatch",),
    ),
    "spawn": Kind(
        "`torch.multiprocessing.spawn`, 2 workers hard-coded",
        ("mp_spawn.py",),
        in_ci=("run", "static", "srun", "sbatch"),
    ),
    "accelerate": Kind("Accelerate", ("accelerate_loop.py",), libraries=True, in_ci=("openmpi",)),
    "transformers": Kind(
        "Transformers: `Trainer`", ("transformers_trainer.py",), libraries=True, in_ci=("mpich",)
    ),
    "lightning": Kind(
        "Lightning: `Trainer`, one device", ("lightning_trainer.py",), libraries=True, in_ci=("srun",)
    ),
    "lightning-ddp": Kind(
        "Lightning: `Trainer`, several devices, strategy `ddp`",
        ("lightning_trainer.py",),
        one_node=("--devices", "2", *_DDP),
        two_nodes=("--devices", "1", "--num_nodes", "2", *_DDP),
        libraries=True,
        in_ci=("srun", "sbatch"),
    ),
    "fabric": Kind("Lightning: `Fabric`, one device", ("fabric_loop.py",), libraries=True, in_ci=("static",)),
    "keras": Kind("Keras on torch", ("keras_fit.py",), libraries=True, in_ci=("torchrun",)),
    "notebook": Kind("a notebook (`.ipynb`)", ("train.ipynb",), in_ci=("run", "srun")),
    "torchrun": Kind("`torchrun` before the script", ("torchrun", "ddp_env.py"), in_ci=("openmpi", "sbatch")),
    "accelerate-launch": Kind(
        "`accelerate launch` before the script",
        ("accelerate", "launch", "accelerate_loop.py"),
        in_ci=("static",),
    ),
}

LAUNCHERS = {
    "run": "`samestep run -n 2`",
    "static": "`samestep run --nnodes 2`",
    "torchrun": "`torchrun`",
    "srun": "`srun`",
    "sbatch": "`samestep submit slurm`",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
}
"""The columns of the table."""
_TWO_NODES = ("static", "sbatch")
"""The launchers whose two workers have a node each; those of the others share one."""

CELLS = [(kind, launcher) for kind in KINDS for launcher in LAUNCHERS]
IN_CI = [(kind, launcher) for kind, launcher in CELLS if launcher in KINDS[kind].in_ci]


class Launches:
    """Starts scripts by the commands that a user types.

    Args:
        nodes: the cluster.
        slurm: Slurm on it.
        folder: where the commands run.
    """

    def __init__(self, nodes: Nodes, slurm: Slurm, folder: Path) -> None:
        self._nodes, self._slurm, self._folder = nodes, slurm, folder
        for name in ("packaged", "task.py"):  # a module is searched in the working folder
            (folder / name).symlink_to(GALLERY / name)

    def ends(self, launcher: str, kind: Kind) -> list[Ended]:
        """Return how the commands ended that start a script with a launcher, under samestep."""
        samestep = (kind.python(), "-m", "samestep", "run")
        torchrun = (kind.python(), "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29400")
        submit = (*samestep[:3], "submit", "slurm", "--nodes=2", "--nproc-per-node=1", "run")
        static = ("--nnodes=2", "--nproc-per-node=1", "--master-addr=node0")
        commands = {
            "run": [(*samestep, "-n", 2)],
            "static": [(*samestep, *static, f"--node-rank={rank}") for rank in range(2)],
            "torchrun": [(*torchrun, *samestep[1:])],
            "srun": [("srun", "--ntasks=2", *samestep)],
            "sbatch": [submit],
        }.get(launcher) or [(*self._mpirun(launcher), *samestep)]
        words = kind.words(nodes=2 if launcher in _TWO_NODES else 1)
        return self._ended(launcher, [(*command, *words) for command in commands])

    def plain_ends(self, kind: Kind) -> list[Ended]:
        """Return how a script ends that is started without samestep."""
        python = kind.python()
        before = {
            "python": lambda: (python,),
            "torchrun": lambda: (python, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            "srun": lambda: ("srun", "--ntasks=2", "env", *_RENDEZVOUS, python),
            "openmpi": lambda: (*self._mpirun("openmpi"), "env", *_RENDEZVOUS, python),
        }[kind.plain]()
        return self._ended(kind.plain, [(*before, *kind.words())])

    def _ended(self, launcher: str, commands: list[tuple[object, ...]]) -> list[Ended]:
        """Return the ends of commands, each of which runs on a node of its own."""
        changes = {"folder": self._folder, **variables()}
        if launcher in ("srun", "sbatch"):
            started = [self._slurm.start(*command, **changes) for command in commands]
        else:
            started = [
                self._nodes.start(f"node{number}", *command, **changes)
                for number, command in enumerate(commands)
            ]
        return [finish(process, DEADLINE_S) for process in started]

    def _mpirun(self, flavor: str) -> list[str]:
        return mpirun(flavor, self._nodes, ["node0"], per_host=2, forward=tuple(variables()))


def outcome(ended: Iterable[Ended], expected: str, *, launcher: str) -> str:
    """Return whether a script has trained as expected, or was refused in one line; fail for anything else.

    Args:
        ended: the ends of the commands that started it.
        expected: the line that the script prints.
        launcher: what started it; torchrun ends with its own traceback and exit code.
    """
    ended = list(ended)
    text = "\n".join(f"{one.out}\n{one.err}" for one in ended)
    codes = {one.code for one in ended}
    printed = [line for one in ended for line in one.out.splitlines() if line.startswith(_LINE)]
    if codes == {0} and len(printed) == 1 and difference(expected, printed[0], digits=5) is None:
        return SAME
    errors = {line for line in text.splitlines() if line.startswith(_ERROR)}
    by_torchrun = launcher == "torchrun"
    is_refused = codes == {1 if by_torchrun else 2} and text.count(_TRACEBACK) == by_torchrun
    assert is_refused, (codes, text)
    assert (printed, len(errors)) == ([], 1), text
    assert not by_torchrun or "exitcode  : 2" in text, text
    return REFUSED


def variables() -> dict[str, str]:
    """Return the variables that every start needs, on every node."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return {
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
