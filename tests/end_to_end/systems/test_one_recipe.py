"""One recipe and one unmodified serial script under every launcher: the same weights, the same losses."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import finish, samestep
from support.mpi import mpirun
from support.nodes import LOGIN
from support.tiers import mostly_long

SERIAL = Path(__file__).parents[2] / "gallery" / "regression_by_hand.py"  # the one that needs no optimizer
RECIPE = ("train", "digits", "--exact", 4, "--subset", 96, "--batch-size", 48, "--epochs", 1, "--json")
COMMAND = (sys.executable, "-m", "samestep")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
TWO = ("node0", "node1")


class Launches:
    """Ways to start one command on several workers: each returns how the processes ended."""

    def __init__(self, request, folder):
        self._request = request
        self._folder = folder

    def torchrun(self, verb, *arguments):
        nodes = self._request.getfixturevalue("nodes")
        command = (*TORCHRUN, "--nproc-per-node=2", *COMMAND[1:], verb, *arguments)
        return [nodes.run("node0", *command, folder=self._folder)]

    def torchrun_on_two_nodes(self, verb, *arguments):
        nodes = self._request.getfixturevalue("nodes")
        flags = ("--nnodes=2", "--master-addr=node0", "--master-port=29400")
        started = [
            nodes.start(
                *(f"node{i}", *TORCHRUN, *flags, f"--node-rank={i}", *COMMAND[1:], verb, *arguments),
                folder=self._folder,
            )
            for i in range(2)
        ]
        return [finish(process) for process in started]

    def srun(self, verb, *arguments):
        slurm = self._request.getfixturevalue("slurm")
        step = ("srun", "--nodes=2", "--ntasks-per-node=2")
        return [slurm.run(*step, *COMMAND, verb, *arguments, folder=self._folder)]

    def one_launcher_per_node(self, verb, *arguments):
        slurm = self._request.getfixturevalue("slurm")
        step = ("srun", "--nodes=2", "--ntasks-per-node=1")
        flags = ("-n", 4)
        rest = (*arguments, *flags) if verb == "train" else (*flags, *arguments)
        return [slurm.run(*step, *COMMAND, verb, *rest, folder=self._folder)]

    def openmpi(self, verb, *arguments):
        return self._mpi("openmpi", verb, *arguments)

    def mpich(self, verb, *arguments):
        return self._mpi("mpich", verb, *arguments)

    def _mpi(self, kind, *command):
        nodes = self._request.getfixturevalue("nodes")
        forward = ["PYTHONPATH"] if "PYTHONPATH" in os.environ else []
        launch = mpirun(kind, nodes, TWO, per_host=1, forward=forward)
        return [nodes.run(LOGIN, *launch, *COMMAND, *command, folder=self._folder)]


WAYS = [name for name in vars(Launches) if not name.startswith("_")]


def printed(ended):
    """Return the output of the ranks; fail if one has failed."""
    for done in ended:
        assert done.code == 0, done.err
    return "".join(done.out for done in ended)


def digest(out):
    (line,) = (line for line in out.splitlines() if line.startswith("{"))
    return json.loads(line)["weights_sha256"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Return the digest of the weights of one worker without a launcher."""
    done = samestep(*RECIPE, "--out", tmp_path_factory.mktemp("plain") / "run")
    return digest(printed([done]))


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """Return the output of the script under Python itself."""
    folder = tmp_path_factory.mktemp("plain")
    command = [sys.executable, SERIAL]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("way", mostly_long(WAYS, ("torchrun_on_two_nodes",)))
def test_a_recipe_ends_with_the_same_weights(way, weights, request, tmp_path):
    out = printed(getattr(Launches(request, tmp_path), way)(*RECIPE, "--out", tmp_path / "run"))
    assert digest(out) == weights


@pytest.mark.parametrize("way", mostly_long(WAYS, ("torchrun_on_two_nodes", "srun")))
def test_a_serial_script_prints_the_same_losses(way, losses, request, tmp_path):
    """Only this finds that ranks of a launcher, on several nodes, are no helpers of rank 0."""
    ended = getattr(Launches(request, tmp_path), way)("run", "--short-calls", "split", SERIAL)
    assert printed(ended) == losses
    assert re.search(": 10[05] calls split", "".join(done.err for done in ended))
