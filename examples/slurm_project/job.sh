#!/bin/bash
# 8 workers on 2 nodes, with a GPU each. For processors remove the line of GPUs.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=2:00:00
#SBATCH --output=train-%j.log

# The virtual environment stands on a file system that all nodes see.
source "${VENV:-$HOME/envs/samestep}/bin/activate"
export PYTHONUNBUFFERED=1
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 samestep run train.py
