"""Lists the names that torchrun, Accelerate and others give to options, and samestep's own names for them."""

from collections.abc import Iterable

SAME = {
    "num-processes": "workers",
    "nproc": "nproc-per-node",  # torchrun takes a name that is cut short
    "ntasks-per-node": "nproc-per-node",  # of Slurm
    "num-machines": "nnodes",
    "machine-rank": "node-rank",
    "main-process-ip": "master-addr",
    "main-process-port": "master-port",
    "learning-rate": "lr",
    "num-epochs": "epochs",
    "num-train-epochs": "epochs",
    "max-epochs": "epochs",
    "per-device-train-batch-size": "batch-per-worker",
    "gradient-accumulation-steps": "accumulate",
    "max-grad-norm": "clip-norm",
    "mixed-precision": "precision",
    "num-cpu-threads-per-process": "threads",
    "num-workers": "loader-workers",
    "output-dir": "out",
    "resume-from-checkpoint": "resume",
}
"""Other names of options, each with samestep's name; both have the same meaning."""

_IS_FOUND = "samestep finds it by itself; leave it out"
_LOGS = "--log-dir DIR with --tee 3 writes a file for each stream of each worker"
_ONCE = "a serial script runs once, in worker 0, with its own"
_NOT_HERE = "samestep has data parallelism only; start this script with accelerate launch"
ANSWERS = {
    "--local-addr": f"{_IS_FOUND}, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to a network interface",
    "--use-env": "the workers always have LOCAL_RANK; leave it out",
    "--start-method": "workers are started as torchrun starts them; leave it out",
    "--run-path": "scripts always run in the interpreter of their worker; leave it out",
    "--virtual-local-rank": "LOCAL_RANK is always the rank on the node; leave it out",
    "--signals-to-handle": "all signals that end a job or warn of its end reach the workers; leave it out",
    "--shutdown-timeout": "workers have some seconds to end before they are killed; leave it out",
    "--numa-binding": "give --bind numa or --bind core",
    "--enable-cpu-affinity": "give --bind numa or --bind core",
    "--local-ranks-filter": "give --redirects RANK:3,.. for the ranks that print to files only",
    "--duplicate-stdout-filters": _LOGS,
    "--duplicate-stderr-filters": _LOGS,
    "--logs-specs": _LOGS,
    "--log-line-prefix-template": "samestep begins the lines of a worker with its rank; leave it out",
    "--print-completion": "give samestep --show-completion",
    "--event-log-handler": "samestep writes no log of events; leave it out",
    "--multi-gpu": "each worker uses a GPU where there is one; leave it out, and give -n",
    "--cpu": "give --device cpu",
    "--gpu-ids": "set CUDA_VISIBLE_DEVICES",
    "--config-file": "give --config FILE with samestep's own options",
    "--dynamo-backend": "samestep train has --compile",
    "--use-deepspeed": _NOT_HERE,
    "--use-fsdp": _NOT_HERE,
    "--use-megatron-lm": _NOT_HERE,
    "--timeout": "give --hang-timeout SECONDS, or for a job --time",
    "--output": "give --out",
    "--out": "give --page FILE for a page",
    "--module": "it is for Python modules; give --load-module for an environment module",
    "--split": "a serial script gets whole batches; in one with samestep.join each worker loads its shard",
    "--load": f"{_ONCE} loaders: set num_workers of the DataLoader",
    "--random": f"{_ONCE} random numbers; leave it out",
    "--batch-norm": "batch norm uses the statistics of the whole batch; leave it out",
    "--algorithm": "samestep chooses shared memory, direct connections or the back end; leave it out",
    "--all-output": f"{_ONCE} output; leave it out",
    "--engine": "a serial script runs once; leave it out",
    "--min": "give --sizes SIZE,..",
    "--max": "give --sizes SIZE,..",
    "--rounds": "give --seconds S",
    "--dtype": "collectives are measured with float32; give --sizes in bytes",
    "--save": "no all-reduce is chosen by measurements any more; leave it out",
    "--with": "samestep lab grade FILE checks the functions of a file",
    "--plot": "give --json, and plot its rows",
    "--figures": "give --json, and plot its rows",
    "--ticket": "give --json for the whole report, and read it before you post it",
    "--clean": "every command removes what dead runs have left; leave it out",
    "-t": "-t is --tee of samestep run; give --time for the time limit of a job",
}
"""Options that samestep does not have, each with what to do."""

MISSING_COMMANDS = {
    "samestep submit mpi": "give samestep run to mpirun: mpirun -np 4 --hostfile hosts samestep run train.py",
    "samestep version": "give samestep --version",
}
"""Commands that samestep does not have, each with what to do."""


def dashed(name: str) -> str:
    """Return a name of an option with dashes, because torchrun takes its names with dashes and underscores.

    >>> dashed("nproc_per_node")
    'nproc-per-node'
    """
    return name.replace("_", "-")


def own_name(name: str) -> str:
    """Return samestep's name of an option; both names have no dashes before them.

    >>> own_name("num_processes"), own_name("hang_timeout")
    ('workers', 'hang-timeout')
    """
    return SAME.get(dashed(name), dashed(name))


def answer_to(option: str, arguments: Iterable[str]) -> str | None:
    """Return what to do instead of giving an option that a command does not have, if it is known.

    Args:
        option: the option, by samestep's name if it has one.
        arguments: the whole command, which may have another name of the option.
    """
    if option in ANSWERS:
        return f"there is no {option}: {ANSWERS[option]}."
    names = (word.partition("=")[0] for word in arguments)
    typed = next(
        (name for name in names if name != option and f"--{own_name(name.strip('-'))}" == option), ""
    )
    if not typed:
        return None
    return f"there is no {typed}, which is {option} of other commands of samestep; leave it out."
