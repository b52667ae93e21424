"""mpirun on the nodes of a cluster, which enters namespaces instead of using ssh."""

from collections.abc import Sequence

from support.nodes import Nodes
from support.systems import program

KINDS = ("openmpi", "mpich")


def mpirun(
    kind: str, nodes: Nodes, hosts: Sequence[str], *, per_host: int, forward: Sequence[str] = ()
) -> list[str]:
    """Return the command line that starts a command `per_host` times on each of `hosts`.

    Skips the test where the MPI is not installed, or fails it where it is required.

    Args:
        kind: ``openmpi`` or ``mpich``.
        nodes: the cluster; the command runs on one of its nodes.
        hosts: names of nodes, in the order of ranks.
        per_host: ranks on each.
        forward: variables for the ranks; MPICH forwards all, Open MPI none of its own accord.
    """
    program(kind, f"mpirun.{kind}")
    ranks = ["-np", str(per_host * len(hosts))]
    if kind == "mpich":
        over = ["-launcher", "rsh", "-launcher-exec", str(nodes.rsh), "-iface", "eth0"]
        return ["mpirun.mpich", *over, "-hosts", ",".join(hosts), "-ppn", str(per_host), *ranks]
    places = ",".join(f"{host}:{per_host}" for host in hosts)
    over = ["--mca", "plm_rsh_agent", str(nodes.rsh), "--mca", "oob_tcp_if_include", "eth0"]
    passed = [word for name in forward for word in ("-x", name)]
    # Without --bind-to none each of two ranks would compute on one processor only.
    return [
        *("mpirun.openmpi", "--allow-run-as-root", "--bind-to", "none", *over, "--host", places),
        *(*ranks, *passed),
    ]
