#!/bin/bash
# Slurm starts one torchrun on each node, which starts the node's workers: `sbatch jobs/srun_torchrun.sh --data DIR`.
#SBATCH --job-name=mnist-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1   # one torchrun on each node, not one task per worker
#SBATCH --gpus-per-node=4     # the GPUs of all workers of the node; leave it out on nodes without GPUs
#SBATCH --cpus-per-task=72    # the cores of all workers of the node
#SBATCH --time=00:10:00       # Slurm ends the job after this time
set -euo pipefail

WORKERS=${WORKERS:-4}

# >>> modules
# First an empty environment: modules that the login shell has loaded would otherwise come along.
if [[ -n "${MODULES:-}" ]]; then
    module purge
    module load $MODULES
fi
# <<<

# >>> start
# --nnodes, --nproc-per-node: nodes of the job, and workers on each.
# --rdzv-backend=c10d: the torchruns find each other at the endpoint; no node needs its number on the command line.
# --rdzv-id: the same on all nodes, another for each job.
# --rdzv-endpoint: the first node of the job, and a port that depends on the job.
# OMP_NUM_THREADS: torchrun sets 1 if it is not set.
FIRST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=$((${SLURM_CPUS_PER_TASK:-1} / WORKERS > 0 ? ${SLURM_CPUS_PER_TASK:-1} / WORKERS : 1))
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=1 \
    "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="$WORKERS" \
    --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-endpoint="$FIRST:$((10000 + SLURM_JOB_ID % 10000))" \
    "${SCRIPT:-ddp.py}" "$@"
# <<<
