"""Declares the options of Slurm jobs, for all verbs that submit some, and merges them with the defaults."""

from typing import Annotated

import typer

from samestep.base import env
from samestep.base.config import config_path, table
from samestep.cli.submit_common import SOFTWARE
from samestep.submit.site import SlurmSite, with_flags

SIZE, SITE = "Resources of a Slurm job", "Slurm site"

GpusPerNode = Annotated[
    int, typer.Option(metavar="G", help="GPUs of each node, one for each worker.", rich_help_panel=SIZE)
]
CpusPerTask = Annotated[
    int | None, typer.Option(metavar="C", help="Cores of each worker.", rich_help_panel=SIZE)
]
Memory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory of each node, such as 64G.", rich_help_panel=SIZE)
]
Time = Annotated[
    str | None,
    typer.Option(
        "--time", "-t", metavar="TIME", help="Time limit: minutes, or 1:30:00.", rich_help_panel=SIZE
    ),
]
Partition = Annotated[
    str | None,
    typer.Option("--partition", "-p", metavar="NAME", help="Partition to run in.", rich_help_panel=SITE),
]
Account = Annotated[
    str | None,
    typer.Option("--account", "-A", metavar="NAME", help="Account to charge.", rich_help_panel=SITE),
]
Reservation = Annotated[
    str | None, typer.Option(metavar="NAME", help="Reservation to run in.", rich_help_panel=SITE)
]
Qos = Annotated[str | None, typer.Option(metavar="NAME", help="Quality of service.", rich_help_panel=SITE)]
Constraint = Annotated[
    str | None,
    typer.Option(
        "--constraint", "-C", metavar="FEATURES", help="Features of the nodes.", rich_help_panel=SITE
    ),
]
Directives = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FLAG",
        help="Another option of sbatch, such as --directive=--exclusive; repeatable.",
        rich_help_panel=SITE,
    ),
]
LoadedModules = Annotated[
    list[str] | None,
    typer.Option(
        "--load-module",
        metavar="NAME",
        help="Environment module to load; repeatable.",
        rich_help_panel=SOFTWARE,
    ),
]
Runtime = Annotated[
    str | None,
    typer.Option(help="Container runtime: apptainer, singularity or pyxis.", rich_help_panel=SOFTWARE),
]


def slurm_site(**flags: object) -> SlurmSite:
    """Return the site of the user's configuration, changed by the flags that were given."""
    return with_flags(table(config_path(env.snapshot()), "slurm", SlurmSite), flags)
