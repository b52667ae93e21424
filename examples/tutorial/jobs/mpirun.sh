#!/bin/bash
# Open MPI starts every worker over ssh: `jobs/mpirun.sh --data DIR` on the first host, in this folder.
# HOSTS=node0:2,node1:2 names the hosts on the command line; without it they are read from HOSTFILE.
set -euo pipefail

# >>> hosts
# -H host:workers,...: hosts and how many workers each has. --hostfile FILE: the same, one host to a line.
if [[ -n "${HOSTS:-}" ]]; then
    PLACES=(-H "$HOSTS")
    FIRST=${HOSTS%%[:,]*}
else
    HOSTFILE=${HOSTFILE:-jobs/hostfile}
    PLACES=(--hostfile "$HOSTFILE")
    FIRST=$(awk '!/^#/ && NF { print $1; exit }' "$HOSTFILE")
fi
# <<<

# >>> start
# -np: workers on all hosts together; left out, mpirun starts one for each slot.
# -x NAME: passes a variable to the workers; Open MPI passes none of its own accord.
# --bind-to none: a worker may use all cores; the default binds it to one if there are up to two workers.
# --map-by slot: fills one host before the next, so that neighboring ranks share a host.
# --mca pml ob1, --mca btl ^openib: MPI's own messages go over TCP. They only start the workers here;
#   the gradients go through NCCL or Gloo, which choose their network themselves.
export MASTER_ADDR=${MASTER_ADDR:-$FIRST} MASTER_PORT=${MASTER_PORT:-29500}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
"${MPIRUN:-mpirun}" ${WORKERS:+-np "$WORKERS"} "${PLACES[@]}" \
    -x MASTER_ADDR -x MASTER_PORT -x OMP_NUM_THREADS -x PATH \
    --bind-to none --map-by slot --mca pml ob1 --mca btl ^openib ${MPI_FLAGS:-} \
    "${PYTHON:-python}" "${SCRIPT:-ddp.py}" "$@"
# <<<
