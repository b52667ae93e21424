"""Declares the options of Slurm jobs, for all verbs that submit some, and merges them with the defaults."""

from typing import Annotated

from samestep.base import env
from samestep.base.config import config_path, table
from samestep.cli.options import option
from samestep.cli.submit_common import SOFTWARE
from samestep.launch.submit.site_defaults import SlurmSite, with_flags

SIZE, SITE = "Resources of a Slurm job", "Slurm site"

GpusPerNode = Annotated[int, option("G", "GPUs of each node, one for each worker.", SIZE)]
CpusPerTask = Annotated[int | None, option("C", "Cores of each worker.", SIZE)]
Memory = Annotated[str | None, option("SIZE", "Memory of each node, such as 64G.", SIZE)]
Time = Annotated[str | None, option("TIME", "Time limit: minutes, or 1:30:00.", SIZE, "--time", "-t")]
Partition = Annotated[str | None, option("NAME", "Partition to run in.", SITE, "--partition", "-p")]
Account = Annotated[str | None, option("NAME", "Account to charge.", SITE, "--account", "-A")]
Reservation = Annotated[str | None, option("NAME", "Reservation to run in.", SITE)]
Qos = Annotated[str | None, option("NAME", "Quality of service.", SITE)]
Constraint = Annotated[str | None, option("FEATURES", "Features of the nodes.", SITE, "--constraint", "-C")]
Directives = Annotated[
    list[str] | None,
    option("FLAG", "Another option of sbatch, such as --directive=--exclusive; repeatable.", SITE),
]
LoadedModules = Annotated[
    list[str] | None, option("NAME", "Environment module to load; repeatable.", SOFTWARE, "--load-module")
]
Runtime = Annotated[str | None, option("", "Container runtime: apptainer, singularity or pyxis.", SOFTWARE)]


def slurm_site(**flags: object) -> SlurmSite:
    """Return the site of the user's configuration, changed by the flags that were given."""
    return with_flags(table(config_path(env.snapshot()), "slurm", SlurmSite), flags)
