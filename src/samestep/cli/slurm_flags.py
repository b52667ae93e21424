"""The flags of jobs of Slurm, for every command that submits some, and the site that they change."""

from typing import Annotated

import typer

from samestep.base import env
from samestep.base.config import config_path, table
from samestep.cli.submitting import SOFTWARE
from samestep.submit.site import SlurmSite, with_flags

SIZE, SITE = "What a job asks for", "What the site wants to know"

GpusPerNode = Annotated[
    int, typer.Option(metavar="G", help="GPUs of each node; one for each worker.", rich_help_panel=SIZE)
]
CpusPerTask = Annotated[
    int | None, typer.Option(metavar="C", help="Processors of each worker.", rich_help_panel=SIZE)
]
Memory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Of each node, as 64G.", rich_help_panel=SIZE)
]
Time = Annotated[
    str | None,
    typer.Option("--time", "-t", metavar="TIME", help="Limit: minutes, or 1:30:00.", rich_help_panel=SIZE),
]
Partition = Annotated[
    str | None, typer.Option("--partition", "-p", metavar="NAME", help="Where to run.", rich_help_panel=SITE)
]
Account = Annotated[
    str | None, typer.Option("--account", "-A", metavar="NAME", help="Whom to charge.", rich_help_panel=SITE)
]
Reservation = Annotated[
    str | None, typer.Option(metavar="NAME", help="Nodes that are set aside.", rich_help_panel=SITE)
]
Qos = Annotated[str | None, typer.Option(metavar="NAME", help="Quality of service.", rich_help_panel=SITE)]
Constraint = Annotated[
    str | None,
    typer.Option("--constraint", "-C", metavar="FEATURES", help="Of the nodes.", rich_help_panel=SITE),
]
Directives = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FLAG", help="Any other of sbatch's: --directive=--exclusive.", rich_help_panel=SITE
    ),
]
LoadedModules = Annotated[
    list[str] | None,
    typer.Option(
        "--load-module", metavar="NAME", help="Of the environment; may be repeated.", rich_help_panel=SOFTWARE
    ),
]
Venv = Annotated[str | None, typer.Option(metavar="DIR", help="To activate.", rich_help_panel=SOFTWARE)]
Runtime = Annotated[
    str | None, typer.Option(help="apptainer, singularity or pyxis.", rich_help_panel=SOFTWARE)
]


def slurm_site(**flags: object) -> SlurmSite:
    """Return what the configuration says of this site, as the flags that were given change it."""
    return with_flags(table(config_path(env.snapshot()), "slurm", SlurmSite), flags)
