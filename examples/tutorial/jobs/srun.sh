#!/bin/bash
# Slurm starts every worker: `sbatch jobs/srun.sh --data DIR` in this folder.
#SBATCH --job-name=mnist-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4   # one task per worker, one worker per GPU
#SBATCH --gpus-per-node=4     # as many as tasks; leave it out on nodes without GPUs
#SBATCH --cpus-per-task=18    # cores of one worker: cores of the node / workers per node
#SBATCH --time=00:10:00       # Slurm ends the job after this time
set -euo pipefail

# First an empty environment: modules that the login shell has loaded would otherwise come along.
if [[ -n "${MODULES:-}" ]]; then
    module purge
    module load $MODULES
fi

# >>> address
# The ranks find each other on the first node of the job. The port depends on the job, so that two jobs
# on one node do not ask for the same one.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((10000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
# <<<

# >>> start
# --cpus-per-task again: srun does not take it over from the job in all versions of Slurm.
# --kill-on-bad-exit: when one worker fails, the others end too and do not wait for it.
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=1 \
    "${PYTHON:-python}" "${SCRIPT:-ddp.py}" "$@"
# <<<
