"""Implements ``samestep submit``, which writes a job for Slurm or MPI, submits it and follows it."""

import typer

from samestep.cli.run import SETTINGS
from samestep.cli.submit_mpi import mpi
from samestep.cli.submit_slurm import slurm

submit = typer.Typer(help="Write the job for Slurm or MPI, submit it, and follow it to its end.")
submit.command("slurm", context_settings=dict(SETTINGS), short_help="Submit a Slurm job.")(slurm)
submit.command("mpi", context_settings=dict(SETTINGS), short_help="Start a job with Open MPI or MPICH.")(mpi)
