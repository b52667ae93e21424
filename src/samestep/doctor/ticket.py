"""What may be pasted into a ticket: secrets, credentials, the home folder and user names are masked.

Masked where it was read, on each rank, so that nothing secret travels.
"""

import json
import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from samestep.base.env import Environment
from samestep.doctor.examination import Examination

MASK = "***"
_SECRET = re.compile(
    r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|SIGNATURE|(^|_)(AUTH|PAT)(_|$)|_PWD(_|$)",
    re.IGNORECASE,
)
_SECRET_IN_URL = re.compile(r"(?<=://)[^\s/@]+@")
# Variables that say how a run goes; the others are nobody's business.
_TOLD = re.compile(
    r"(SLURM|SBATCH|SRUN|OMPI|PMI|PMIX|MPI|HYDRA|I_MPI|TORCH|PYTORCH|NCCL|RCCL|GLOO|TP_SOCKET|UCX|FI_|CUDA|NVIDIA|HIP|"
    r"ROCR|ZE_|OMP|GOMP|KMP|MKL|MASTER_|RANK$|WORLD_SIZE$|LOCAL_|GROUP_|ROLE_|NODE_RANK$|NNODES$|SAMESTEP|"
    r"PYTHONPATH$|LD_LIBRARY_PATH$|LD_PRELOAD$|VIRTUAL_ENV$|CONDA_PREFIX$|XDG_|TMPDIR$|WANDB_|HF_)"
)
_SHORTEST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """What to hide.

    Args:
        secrets: texts that must not be seen.
        home: the home folder; becomes ``~``.
        users: names that become ``USER`` where they stand in a path or before an ``@``.
    """

    secrets: tuple[str, ...] = ()
    home: str = ""
    users: tuple[str, ...] = ()

    @classmethod
    def of(cls, env: Environment) -> "Mask":
        """Return what to hide of a process with this environment."""
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
        """Return `text` without what is to be hidden."""
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        text = _SECRET_IN_URL.sub(f"{MASK}@", text)
        if self.home:
            text = re.sub(rf"(?<![\w.~-]){re.escape(self.home)}(?![\w.-])", "~", text)
        for user in self.users:
            text = re.sub(rf"(?<=/){re.escape(user)}(?![\w.-])|\b{re.escape(user)}(?=@)", "USER", text)
        return text


def is_secret(name: str) -> bool:
    """Return whether a variable's name says that its value is nobody else's.

    >>> [is_secret(name) for name in ("WANDB_API_KEY", "HF_TOKEN", "MY_PASSWORD", "PATH")]
    [True, True, True, False]
    """
    return _SECRET.search(name) is not None


def environment_rows(env: Environment) -> list[tuple[str, str]]:
    """Return the variables that say how a run goes; of secrets only that they are set."""
    told = [
        (name, MASK if is_secret(name) else value) for name, value in sorted(env.items()) if _TOLD.match(name)
    ]
    return [("variables" if i == 0 else "", f"{name}={value}") for i, (name, value) in enumerate(told)]


def masked(examination: Examination, mask: Mask) -> Examination:
    """Return an examination without what is to be hidden."""
    hidden = json.dumps(_walk(json.loads(examination.to_json()), mask))
    # Ranks are compared by their hosts' names, which a ticket needs.
    return replace(Examination.from_json(hidden), host=examination.host)


def _walk(value: object, mask: Mask) -> object:
    if isinstance(value, str):
        return mask.text(value)
    if isinstance(value, dict):
        return {name: _walk(item, mask) for name, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, mask) for item in value]
    return value
