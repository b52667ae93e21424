"""Declares the options of jobs for Slurm and MPI that are not settings of a site."""

from typing import Annotated

import typer

from samestep.cli.options.declare import option, switch
from samestep.launch.submit.site_defaults import SIZE_PANEL

Target = Annotated[
    str, typer.Argument(metavar="PROGRAM", help="A script, or a verb: run, train, bench or doctor.")
]
GpusPerNode = Annotated[int, option("G", "GPUs of each node, one for each worker.", SIZE_PANEL)]
Detach = Annotated[bool, switch("Print the job's number, and do not follow the job.", "", "--detach")]
