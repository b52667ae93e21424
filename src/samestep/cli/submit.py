"""``samestep submit``: the job for a site's scheduler or MPI, written, handed over and followed."""

import typer

from samestep.cli.run import SETTINGS
from samestep.cli.submit_mpi import mpi
from samestep.cli.submit_slurm import slurm

submit = typer.Typer(help="Write the job for Slurm or MPI, submit it, and follow it to its end.")
submit.command("slurm", context_settings=dict(SETTINGS), short_help="A job of Slurm.")(slurm)
submit.command("mpi", context_settings=dict(SETTINGS), short_help="A job of Open MPI or MPICH.")(mpi)
