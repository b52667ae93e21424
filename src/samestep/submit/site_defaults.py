"""Holds the defaults for all jobs of a site, from the user's configuration, and merges them with flags.

Each field is a key of the configuration and a flag of the verbs that submit jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from samestep.base import env
from samestep.base.config import config_path, table
from samestep.base.errors import UsageError
from samestep.base.options import check, option
from samestep.submit.shell import quoted

SIZE_PANEL, SOFTWARE_PANEL = "Resources of a job", "Software"
SITE_PANEL, POD_PANEL = "Slurm site", "Pods"


def _text(about: str, panel: str, metavar: str, *names: str, default: Any = "") -> Any:
    return option(default=default, about=about, panel=panel, metavar=metavar, names=names)


def _cores() -> Any:
    return option(default=None, about="Cores of each worker.", panel=SIZE_PANEL, metavar="C", least=1)


def _memory() -> Any:
    return _text("Memory of each node, such as 64G.", SIZE_PANEL, "SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """The ``[slurm]`` table: requests of all Slurm jobs of a site, and the software of the jobs."""

    modules: tuple[str, ...] = _text(
        "Environment module to load; repeatable.", SOFTWARE_PANEL, "NAME", "--load-module", default=()
    )
    venv: str = _text("Virtual environment to activate.", SOFTWARE_PANEL, "DIR")
    container: str = _text("Container image of the workers.", SOFTWARE_PANEL, "IMAGE")
    container_runtime: str = option(
        default="apptainer",
        about="Container runtime: apptainer, singularity or pyxis.",
        panel=SOFTWARE_PANEL,
        choices=("apptainer", "singularity", "pyxis"),
    )
    lines: tuple[str, ...] = _text(
        "Line of shell to run before the workers start; repeatable.",
        *(SOFTWARE_PANEL, "SHELL", "--line"),
        default=(),
    )
    cpus_per_task: int | None = _cores()
    mem: str = _memory()
    time: str = _text("Time limit: minutes, or 1:30:00.", SIZE_PANEL, "TIME", "--time")
    partition: str = _text("Partition to run in.", SITE_PANEL, "NAME", "--partition", "-p")
    account: str = _text("Account to charge.", SITE_PANEL, "NAME", "--account", "-A")
    reservation: str = _text("Reservation to run in.", SITE_PANEL, "NAME")
    qos: str = _text("Quality of service.", SITE_PANEL, "NAME")
    constraint: str = _text("Features of the nodes.", SITE_PANEL, "FEATURES", "--constraint", "-C")
    directives: tuple[str, ...] = _text(
        "Another option of sbatch, such as --directive=--exclusive; repeatable.",
        *(SITE_PANEL, "FLAG", "--directive"),
        default=(),
    )

    def __post_init__(self) -> None:
        check(self)
        if self.container and self.venv:
            raise UsageError(
                f"container {self.container} and venv {self.venv} each have a Python; give only one of them."
            )

    def preparation(self) -> list[str]:
        """Return the lines of shell that set up the software."""
        prepared = []
        if self.modules:
            prepared.append(f"module load {' '.join(quoted(self.modules))} || exit")
        if self.venv:
            prepared.append(
                f"source {quoted([_at_home(self.venv).rstrip('/') + '/bin/activate'])[0]} || exit"
            )
        return [*prepared, *self.lines]

    def python(self, here: str) -> list[str]:
        """Return the words that call Python in the job; `here` is the interpreter that submits."""
        if self.container:
            return ["python3"]
        return ["python" if self.venv else quoted([here])[0]]

    def within(self, *, gpus: bool) -> list[str]:
        """Return the words before a worker's command that put it into the container."""
        if not self.container or self.container_runtime == "pyxis":
            return []
        nv = ["--nv"] if gpus else []
        return [self.container_runtime, "exec", *nv, *quoted([_at_home(self.container)])]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSite:
    """The ``[kubernetes]`` table: the pods of a site."""

    image: str = _text("Image of the pods; its python3 has samestep.", POD_PANEL, "IMAGE")
    workdir: str = _text("Working folder in the pods. Default: the image's.", POD_PANEL, "DIR")
    claim: str = _text("PersistentVolumeClaim, mounted at the working folder or /work.", POD_PANEL, "NAME")
    cpus_per_task: int | None = _cores()
    mem: str = _memory()
    gpu_resource: str = _text("Name of the GPUs.", POD_PANEL, "NAME", default="nvidia.com/gpu")
    namespace: str = _text("Namespace. Default: kubectl's.", POD_PANEL, "NAME", "--namespace")
    secret: str = _text(
        "Secret by which the pods authenticate each other.", POD_PANEL, "NAME", default="samestep"
    )
    fs_group: int | None = option(
        default=None,
        about="Group that may read the Secret, for an image whose user is not root.",
        panel=POD_PANEL,
        metavar="GID",
        least=1,
    )

    def __post_init__(self) -> None:
        check(self)


def _at_home(path: str) -> str:
    """Return a path with ``~`` expanded, because a shell does not expand it within quotes."""
    return str(Path(path).expanduser()) if path.startswith("~") else path


Site = TypeVar("Site", SlurmSite, KubernetesSite)
_TABLES = {SlurmSite: "slurm", KubernetesSite: "kubernetes"}


def site_of(kind: type[Site], flags: Mapping[str, Any]) -> Site:
    """Return the site of the user's configuration, changed by the flags that were given.

    Raises:
        UsageError: the configuration or a flag is wrong.
    """
    return with_flags(table(config_path(env.snapshot()), _TABLES[kind], kind), flags)


def with_flags(site: Site, flags: Mapping[str, Any]) -> Site:
    """Return `site`, changed by the flags that were given; None and an empty list mean not given."""
    changes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in flags.items()
        if value is not None and value != []
    }
    for flag, rival in (("container", "venv"), ("venv", "container")):
        if flag in changes and rival not in changes:
            changes[rival] = ""  # a flag overrides the file's other kind of Python
    return replace(site, **changes)
