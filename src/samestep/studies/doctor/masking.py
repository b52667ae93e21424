"""Masks secrets, credentials, the home folder and user names, so that a report can be pasted into a ticket.

Each rank masks its own values, so that no secret is sent.
"""

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from samestep.base.env import Environment
from samestep.base.record import map_values
from samestep.studies.doctor.results import Result, Row, rows

MASK = "***"
_REVEALING = r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|JWT"
_SECRET = re.compile(rf"{_REVEALING}|COOKIE|SIGNATURE|(^|_)(AUTH|PAT)(_|$)|_PWD(_|$)", re.IGNORECASE)
# A password can contain @ or /: everything before the last @ of a word is masked.
_SECRET_IN_URL = re.compile(r"(?<=://)[^\s'\"<>]+@")
# --api-key VALUE, --password=VALUE and API_KEY=VALUE, of any process.
_SECRET_ARGUMENT = re.compile(
    rf"((?<![\w-])--?[\w-]*(?:{_REVEALING})[\w-]*[= ]|\b\w*(?:{_REVEALING})\w*=)\S+", re.IGNORECASE
)
# Variables that affect a run; all others are private. Launchers pass keys of the job in some of their
# variables, so that of those only the listed names are reported.
_REPORTED = re.compile(
    r"(MPI_|MPICH_|MPIR_|MV2_|HYDRA_|I_MPI_|PALS_|HOROVOD_|FLUX_|PET_|TORCH|PYTORCH|NCCL|RCCL|GLOO|TP_SOCKET|UCX|FI_|"
    r"CUDA|NVIDIA|HIP|ROCR|ZE_|OMP_|GOMP|KMP|MKL|MASTER_|RANK$|WORLD_SIZE$|LOCAL_|GROUP_|ROLE_|NODE_RANK$|NNODES$|"
    r"SAMESTEP|PYTHONPATH$|LD_LIBRARY_PATH$|LD_PRELOAD$|VIRTUAL_ENV$|CONDA_PREFIX$|XDG_|TMPDIR$|WANDB_|HF_|"
    r"SLURMD_NODENAME$|"
    r"(SLURM|SRUN|SBATCH|SALLOC)_(JOB_?ID|JOB_(NAME|NUM_NODES|NODELIST|PARTITION|CPUS_PER_NODE|GPUS)|"
    r"STEP_?ID|STEP_(NUM_TASKS|NUM_NODES|NODELIST|TASKS_PER_NODE|GPUS)|NNODES|NODELIST|NTASKS\w*|NPROCS|"
    r"TASKS_PER_NODE|PROCID|LOCALID|NODEID|GTIDS|CPUS_\w+|CPU_BIND\w*|MEM_BIND\w*|MEM_PER_\w+|GPUS\w*|GPU_BIND|"
    r"TRES_PER_TASK|THREADS_PER_CORE|HINT|DISTRIBUTION|EXCLUSIVE|EXACT|OVERLAP|OVERCOMMIT|OVERSUBSCRIBE|"
    r"KILL_BAD_EXIT|MPI_TYPE|ARRAY_\w+|HET_\w+|RESTART_COUNT|PTY_PORT|SRUN_COMM_HOST|LAUNCH_NODE_IPADDR)$|"
    r"OMPI_(COMM_WORLD_\w+|UNIVERSE_SIZE|FIRST_RANKS|APP_CTX_NUM_PROCS|"
    r"MCA_(orte_(num_nodes|node_regex|rankfile)|(rmaps|hwloc|btl|pml|mtl|osc|coll|plm_rsh_agent|oob_tcp)\w*))$|"
    r"PMI_(RANK|SIZE|ID|LOCAL_\w+)$|PMIX_(RANK|NAMESPACE|HOSTNAME|VERSION)$)"
)
_SHORTEST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """Texts to mask."""

    secrets: tuple[str, ...] = ()  # texts that become ``***``
    home: str = ""  # the home folder, which becomes ``~``
    users: tuple[str, ...] = ()  # names that become ``USER`` in a path or before an ``@``

    @classmethod
    def of(cls, env: Environment) -> "Mask":
        """Return the texts to mask for a process with this environment."""
        secrets = {value for name, value in env.items() if is_secret(name) and len(value) >= _SHORTEST}
        home = env.get("HOME", "").rstrip("/")
        users = {env.get("USER", ""), env.get("LOGNAME", ""), env.get("SLURM_JOB_USER", "")}
        if home:
            users.add(PurePosixPath(home).name)
        return cls(
            secrets=tuple(sorted(secrets, key=len, reverse=True)),
            home=home,
            users=tuple(sorted(user for user in users if user)),
        )

    def text(self, text: str) -> str:
        """Return `text` with secrets, credentials, the home folder and user names masked."""
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        text = without_credentials(text)
        if self.home:
            text = re.sub(rf"(?<![\w.~-]){re.escape(self.home)}(?![\w.-])", "~", text)
        for user in self.users:
            text = re.sub(rf"(?<=/){re.escape(user)}(?![\w.-])|\b{re.escape(user)}(?=@)", "USER", text)
        return text


def without_credentials(text: str) -> str:
    """Return `text` with passwords in addresses, and values of arguments with secret names, masked.

    >>> without_credentials("python train.py --api-key abc --log ftp://me:pw@host/")
    'python train.py --api-key *** --log ftp://***@host/'
    """
    return _SECRET_ARGUMENT.sub(rf"\g<1>{MASK}", _SECRET_IN_URL.sub(f"{MASK}@", text))


def is_secret(name: str) -> bool:
    """Return whether the value of a variable is secret, according to its name.

    >>> [is_secret(name) for name in ("WANDB_API_KEY", "HF_TOKEN", "MY_PASSWORD", "PATH")]
    [True, True, True, False]
    """
    return _SECRET.search(name) is not None


def environment_rows(env: Environment) -> list[Row]:
    """Return the variables that affect a run; the values of secrets are masked."""
    shown = [
        f"{name}={MASK if is_secret(name) else value}"
        for name, value in sorted(env.items())
        if _REPORTED.match(name)
    ]
    return rows("variables", shown)


def masked(result: Result, mask: Mask) -> Result:
    """Return a result with all its texts masked."""
    return Result(
        rows=[(name, mask.text(value)) for name, value in result.rows],
        findings=[replace(finding, text=mask.text(finding.text)) for finding in result.findings],
        facts=map_values(result.facts, lambda value: mask.text(value) if isinstance(value, str) else value),
    )
