"""A temporary Slurm cluster: munge, slurmctld and one slurmd on each node, in the foreground.

All daemons run in the nodes' namespaces, with keys, sockets and state in one folder: nothing of the machine's
own is touched, and no port can be taken. They are gone when the nodes are.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.commands import Ended, environment, finish
from support.nodes import LOGIN, Nodes
from support.systems import program

CPUS = 4
"""Processors that each node claims to have, however many the machine has."""

GPUS = 2
"""GPUs that each node claims to have: any devices will do, as nobody computes on them."""

# Followed through /proc, pinned to nothing; impatient where Slurm by default waits half a minute.
_CONF = """
ClusterName=mini
SlurmctldHost={login}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2,sched_min_interval=0
KillWait=5
SlurmdTimeout=20
ReturnToService=2
JobRequeue=1
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Slurm on some nodes, with its commands on their login node.

    Args:
        nodes: the nodes.
        folder: an empty one, for all that the daemons write.
    """

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        self.nodes = nodes
        self.conf = folder / "slurm.conf"
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._configure()
        (folder / "state").mkdir()
        try:
            self._start(LOGIN, *_munged(folder))
            self._until((folder / "munge.socket").exists, "munge has no socket")
            self._start(LOGIN, "slurmctld", "-D", "-c")
            for name in nodes.names:
                (folder / f"spool-{name}").mkdir()
                self._start(name, "slurmd", "-D", "-N", name)
            self._until(self._all_idle, "not all nodes are idle")
        except BaseException:
            self.close()
            raise
        self.daemons = nodes.processes()

    def start(self, *command: object, folder: Path | None = None, **changes: str) -> subprocess.Popen[str]:
        """Start a command on the login node."""
        return self.nodes.start(LOGIN, *command, folder=folder, SLURM_CONF=str(self.conf), **changes)

    def run(self, *command: object, folder: Path | None = None, **changes: str) -> Ended:
        """Run a command on the login node to its end."""
        return finish(self.start(*command, folder=folder, **changes))

    def batch(self, script: str, *flags: object, folder: Path, **changes: str) -> list[str]:
        """Submit a job script and wait for the end of the job; return what it printed, task by task.

        Args:
            script: its lines after the first.
            flags: of sbatch.
            folder: where the job runs, and its output is kept.
        """
        file = folder / "job.sh"
        file.write_text(f"#!/bin/sh\n{script}\n")
        output = folder / "out-%A_%a-%j"
        said = self.run(
            *("sbatch", "--parsable", f"--output={output}", *flags, file), folder=folder, **changes
        )
        assert said.code == 0, said.err
        job = said.out.strip()
        self._until(lambda: not self.states(job), f"job {job} does not end", seconds=60)
        return [path.read_text() for path in sorted(folder.glob("out-*"))]

    def states(self, job: str = "") -> list[str]:
        """Return the state of each task of a job, or of all jobs, that has not ended."""
        only = [f"--jobs={job}"] if job else []
        return self.run("squeue", "--noheader", "--format=%T", *only).out.split()

    def start_again(self, job: str) -> None:
        """Start a requeued job at once, for which Slurm takes two minutes."""

        def waits() -> bool:
            return "BeginTime" in self.run("squeue", "--noheader", "--format=%r", f"--jobs={job}").out

        self._until(waits, f"job {job} is not queued again", seconds=30)
        time.sleep(2)  # slurmd takes no job again within the second in which it ended it
        self.run("scontrol", "update", f"jobid={job}", "StartTime=now")

    @contextmanager
    def lost(self, node: str) -> Iterator[None]:
        """Lose a node for the duration of a block: its processes are killed, and it is marked down."""
        self.nodes.kill(self.nodes.processes(node) - self.daemons)
        for state in ("down", "drain"):  # its daemon goes on, and would bring it back
            self.run("scontrol", "update", f"nodename={node}", f"state={state}", "reason=lost")
        try:
            yield
        finally:
            self.run("scontrol", "update", f"nodename={node}", "state=resume")
            self._until(self._all_idle, f"{node} does not come back")

    def cancel_all(self) -> None:
        """End all jobs, at once."""
        self.run("scancel", "--user=root", "--state=PENDING")
        self.run("scancel", "--user=root", "--signal=KILL", "--full")

    def close(self) -> None:
        """End the daemons and the processes that they have started."""
        self.nodes.kill(self.nodes.processes())
        for daemon in self._daemons:
            daemon.wait()

    def _configure(self) -> None:
        nodes, folder = self.nodes, self._folder
        each = "NodeName={0} NodeAddr={1} NodeHostname={0} CPUs={2} RealMemory=4096 Gres=gpu:{3}"
        text = _CONF.format(
            login=LOGIN,
            address=nodes.addresses[LOGIN],
            folder=folder,
            nodes="\n".join(each.format(name, nodes.addresses[name], CPUS, GPUS) for name in nodes.names),
            names=",".join(nodes.names),
        )
        self.conf.write_text(text)
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null,/dev/zero\n")
        # slurmd prepares control groups even where nothing uses them, and in a namespace finds none itself.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _start(self, node: str, *command: str) -> None:
        with (self._folder / f"{command[0]}-{node}.log").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    self.nodes.command(node, *command, folder=self._folder),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment(SLURM_CONF=str(self.conf)),
                    start_new_session=True,
                )
            )

    def _all_idle(self) -> bool:
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").out.splitlines()
        return {f"{name} idle" for name in self.nodes.names} <= set(lines)  # "idle*" has not answered yet

    def _until(self, holds, otherwise: str, *, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                jobs = self.run("scontrol", "show", "job").out
                # The last lines of a long report are the ones that are read: those of the controller.
                files = sorted(self._folder.glob("*.log"), key=lambda path: path.name.startswith("slurmctld"))
                logs = [f"--- {path.name}\n{path.read_text()[-2000:]}" for path in files]
                raise AssertionError("\n".join([otherwise, jobs, *logs]))
            time.sleep(0.05)


def can_run_slurm() -> None:
    """Skip the test, or fail it if ``slurm`` is required, where Slurm is not installed."""
    for name in ("munged", "slurmctld", "slurmd", "srun"):
        program("slurm", name)


def _munged(folder: Path) -> list[str]:
    """Return the command of a munge of its own, with a new key."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = {
        "key-file": key,
        "socket": folder / "munge.socket",
        "pid-file": folder / "munged.pid",
        "log-file": folder / "munged.log",
        "seed-file": folder / "munge.seed",
    }
    return ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())]
