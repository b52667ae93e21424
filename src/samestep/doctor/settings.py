"""Finds settings of NCCL, Gloo and CUDA that contradict the machine.

Each rule is a function of the variables and of the network; the names are those of NCCL's and PyTorch's
documentation.
"""

from collections.abc import Callable, Iterator, Sequence

from samestep.base.env import Environment
from samestep.base.machine.interfaces import Interface
from samestep.doctor.network import Network
from samestep.doctor.results import Finding, Result, note, problem, rows

_OFF = {"", "0"}
_SHOWN = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TP_SOCKET", "CUDA_VISIBLE", "CUDA_LAUNCH", "RCCL_", "UCX_", "FI_")


def judge(env: Environment, network: Network) -> Result:
    """Return the variables that are set, and findings about those that are wrong here."""
    shown = [f"{name}={value}" for name, value in sorted(env.items()) if name.startswith(_SHOWN)]
    return Result(
        rows=rows("settings", shown),
        findings=[finding for rule in RULES for finding in rule(env, network)],
        facts={"settings": shown},
    )


def gloo_interface(env: Environment, network: Network) -> Iterator[Finding]:
    """Check ``GLOO_SOCKET_IFNAME``, a list of full names."""
    text = env.get("GLOO_SOCKET_IFNAME", "")
    by_name = {one.name: one for one in network.interfaces}
    for name in [name.strip() for name in text.split(",") if name.strip()] if by_name else ():
        one = by_name.get(name)
        if one is None:
            yield problem(
                f"GLOO_SOCKET_IFNAME={text} names {name}, but this host has {_names(network.interfaces)}: "
                "Gloo fails to start. Set it to one of them, or unset it."
            )
        elif not one.up or not one.addresses:
            lacks = "is down" if not one.up else "has no IP address"
            yield problem(f"GLOO_SOCKET_IFNAME={name}, but {name} {lacks}. Set it to another interface.")
        elif one.loopback and network.nodes > 1:
            yield _loopback(f"GLOO_SOCKET_IFNAME={name}", network)


def nccl_interface(env: Environment, network: Network) -> Iterator[Finding]:
    """Check ``NCCL_SOCKET_IFNAME``, a list of prefixes; ``=`` selects full names, ``^`` all other names."""
    text = env.get("NCCL_SOCKET_IFNAME", "")
    if not text or network.backend not in (None, "nccl") or not network.interfaces:
        return
    chosen = [one for one in network.interfaces if matches(text, one.name)]
    if not chosen:
        yield problem(
            f"NCCL_SOCKET_IFNAME={text} fits none of this host's interfaces "
            f"({_names(network.interfaces)}): NCCL fails to start. Set it to one of them, or unset it."
        )
    elif not any(one.up and one.addresses for one in chosen):
        yield problem(
            f"NCCL_SOCKET_IFNAME={text} leaves {_names(chosen)}, none of which is up with an IP "
            "address. Set it to another interface."
        )
    elif all(one.loopback for one in chosen) and network.nodes > 1:
        yield _loopback(f"NCCL_SOCKET_IFNAME={text}", network)


def infiniband_adapters(env: Environment, network: Network) -> Iterator[Finding]:
    """Check ``NCCL_IB_HCA``, a list like `nccl_interface`'s, of adapters, each with or without a port."""
    text = env.get("NCCL_IB_HCA", "")
    if not text or not network.ports or network.nodes == 1 or network.backend not in (None, "nccl"):
        return
    fitting = [port for port in network.ports if matches(text, port.adapter, port.name)]
    if not any(port.is_active for port in fitting):
        which = "none of" if not fitting else "no active one of"
        every = ", ".join(f"{port.name} {port.state}" for port in network.ports)
        yield problem(
            f"NCCL_IB_HCA={text} fits {which} the InfiniBand ports ({every}): NCCL falls back to TCP. "
            "Set it to an active one, or unset it."
        )


def disabled_transports(env: Environment, network: Network) -> Iterator[Finding]:
    """Check for transports that are fast here, disabled for debugging or for another machine."""
    if network.backend not in (None, "nccl"):
        return
    several = network.accelerators > 1 or (network.accelerators and network.local_size > 1)
    p2p = _first(env, NCCL_P2P_DISABLE=_is_on, NCCL_P2P_LEVEL=lambda value: value in {"0", "LOC"})
    if several and p2p:
        yield problem(
            f"{p2p}: the GPUs of this host communicate through host memory, not NVLink or "
            "PCIe. Unset it, unless the copies between GPUs above arrive wrong."
        )
    shm = _first(env, NCCL_SHM_DISABLE=_is_on)
    if several and shm:
        yield problem(f"{shm}: GPUs of this host without a direct link use the network. Unset it.")
    tcp = _first(env, NCCL_IB_DISABLE=_is_on, NCCL_NET=lambda value: value == "Socket")
    if network.nodes > 1 and network.active_ports and tcp:
        port = network.active_ports[0]
        yield problem(f"{tcp}: NCCL uses TCP, though {port.name} is active ({port.rate}). Unset it.")


def debugging(env: Environment, network: Network) -> Iterator[Finding]:
    """Check for settings that are for debugging and make every step slower."""
    if _is_on(env.get("CUDA_LAUNCH_BLOCKING", "")) and network.accelerators:
        yield problem("CUDA_LAUNCH_BLOCKING=1 makes the CPU wait for each kernel. Unset it for training.")
    if env.get("NCCL_DEBUG", "").upper() == "TRACE" and network.backend == "nccl":
        yield note("NCCL_DEBUG=TRACE writes a line for each call. Use WARN or INFO.")
    if env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        yield note(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL compares the ranks before each collective, which costs time. "
            "Unset it for training."
        )


def equal_pinning(env: Environment, network: Network) -> Iterator[Finding]:
    """Check OpenMP's pinning, which is the same for each rank and puts all of them on the same processors."""
    for name in ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES"):
        value = env.get(name, "")
        explicit = any(character.isdigit() for character in value)
        if network.local_size > 1 and explicit and ("proclist" in value or name != "KMP_AFFINITY"):
            yield problem(
                f"{name}={value} is the same for all {network.local_size} ranks of this host: their "
                "threads share those processors. Unset it, and let the launcher bind the ranks."
            )


RULES: Sequence[Callable[[Environment, Network], Iterator[Finding]]] = (
    gloo_interface,
    nccl_interface,
    infiniband_adapters,
    disabled_transports,
    debugging,
    equal_pinning,
)


def matches(pattern: str, *names: str) -> bool:
    """Return whether one of `names` fits a list in NCCL's notation.

    >>> [matches(p, "eth0") for p in ("eth", "=eth", "=eth0", "^docker,lo", "^eth", "^=eth")]
    [True, False, True, True, False, True]
    """
    excluding = pattern.startswith("^")
    rest = pattern.removeprefix("^")
    whole = rest.startswith("=")
    words = [word.strip() for word in rest.removeprefix("=").split(",") if word.strip()]
    hit = any(name == word if whole else name.startswith(word) for word in words for name in names)
    return hit != excluding


def _first(env: Environment, **applies: Callable[[str], bool]) -> str:
    """Return ``NAME=VALUE`` of the first variable whose value applies; an empty text if none does."""
    return next((f"{name}={env[name]}" for name, test in applies.items() if test(env.get(name, ""))), "")


def _is_on(value: str) -> bool:
    return value not in _OFF


def _loopback(setting: str, network: Network) -> Finding:
    return problem(
        f"{setting} is loopback, which reaches this host only, and the job has {network.nodes} "
        "nodes. Set it to the interface between the nodes (see `ip addr`)."
    )


def _names(every: Sequence[Interface]) -> str:
    return ", ".join(one.name for one in every)
