"""Finds settings of NCCL, Gloo and CUDA that contradict the machine.

Each rule is a function of the variables and of the situation; the names are those of NCCL's and PyTorch's
documentation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from samestep.base.env import Environment
from samestep.base.machine.interfaces import Interface
from samestep.studies.doctor.check_result import Finding, Part
from samestep.studies.doctor.infiniband import Port

_OFF = {"", "0"}
_SHOWN = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TP_SOCKET", "CUDA_VISIBLE", "CUDA_LAUNCH", "RCCL_", "UCX_", "FI_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Machine and job that the settings are compared with.

    Args:
        interfaces: network interfaces of this host.
        ports: its InfiniBand ports.
        backend: back end of the job's communication.
        nodes: number of nodes of the job.
        local_size: number of ranks on this host.
        accelerators: number of accelerators that this process sees.
    """

    interfaces: Sequence[Interface]
    ports: Sequence[Port] = ()
    backend: str | None = None
    nodes: int = 1
    local_size: int = 1
    accelerators: int = 0


Rule = Callable[[Environment, Situation], Iterator[Finding]]


def judge(env: Environment, here: Situation) -> Part:
    """Return the variables that are set, and findings about those that are wrong here."""
    shown = [f"{name}={value}" for name, value in sorted(env.items()) if name.startswith(_SHOWN)]
    return Part(
        rows=tuple(("settings" if i == 0 else "", text) for i, text in enumerate(shown)),
        findings=tuple(finding for rule in RULES for finding in rule(env, here)),
        facts={"settings": shown},
    )


def gloo_interface(env: Environment, here: Situation) -> Iterator[Finding]:
    """Check ``GLOO_SOCKET_IFNAME``, a list of full names."""
    names = [name.strip() for name in env.get("GLOO_SOCKET_IFNAME", "").split(",") if name.strip()]
    by_name = {one.name: one for one in here.interfaces}
    for name in names if here.interfaces else ():
        one = by_name.get(name)
        if one is None:
            yield Finding(
                text=f"GLOO_SOCKET_IFNAME={env['GLOO_SOCKET_IFNAME']} names {name}, but this host has "
                f"{_names(here.interfaces)}: Gloo fails to start. Set it to one of them, or unset it."
            )
        elif not one.up or not one.addresses:
            lacks = "is down" if not one.up else "has no IP address"
            yield Finding(text=f"GLOO_SOCKET_IFNAME={name}, but {name} {lacks}. Set it to another interface.")
        elif one.loopback and here.nodes > 1:
            yield _loopback("GLOO_SOCKET_IFNAME", name, here)


def nccl_interface(env: Environment, here: Situation) -> Iterator[Finding]:
    """Check ``NCCL_SOCKET_IFNAME``, a list of prefixes; ``=`` selects full names, ``^`` all other names."""
    text = env.get("NCCL_SOCKET_IFNAME", "")
    if not text or here.backend not in (None, "nccl") or not here.interfaces:
        return
    chosen = [one for one in here.interfaces if matches(text, one.name)]
    if not chosen:
        yield Finding(
            text=f"NCCL_SOCKET_IFNAME={text} fits none of this host's interfaces "
            f"({_names(here.interfaces)}): NCCL fails to start. Set it to one of them, or unset it."
        )
    elif not any(one.up and one.addresses for one in chosen):
        yield Finding(
            text=f"NCCL_SOCKET_IFNAME={text} leaves {_names(chosen)}, none of which is up with an IP "
            "address. Set it to another interface."
        )
    elif all(one.loopback for one in chosen) and here.nodes > 1:
        yield _loopback("NCCL_SOCKET_IFNAME", text, here)


def infiniband_adapters(env: Environment, here: Situation) -> Iterator[Finding]:
    """Check ``NCCL_IB_HCA``, a list like `nccl_interface`'s, of adapters, each with or without a port."""
    text = env.get("NCCL_IB_HCA", "")
    if not text or not here.ports or here.nodes == 1 or here.backend not in (None, "nccl"):
        return
    fitting = [port for port in here.ports if matches(text, port.adapter, port.name)]
    if not any(port.is_active for port in fitting):
        which = "none of" if not fitting else "no active one of"
        every = ", ".join(f"{port.name} {port.state}" for port in here.ports)
        yield Finding(
            text=f"NCCL_IB_HCA={text} fits {which} the InfiniBand ports ({every}): NCCL falls back to TCP. "
            "Set it to an active one, or unset it."
        )


def switched_off(env: Environment, here: Situation) -> Iterator[Finding]:
    """Check for disabled transports that are fast here, disabled for debugging or for another machine."""
    if here.backend not in (None, "nccl"):
        return
    active = [port for port in here.ports if port.is_active]
    several = here.accelerators > 1 or (here.accelerators and here.local_size > 1)
    level = env.get("NCCL_P2P_LEVEL", "")
    if several and (_is_on(env, "NCCL_P2P_DISABLE") or level in {"0", "LOC"}):
        name = "NCCL_P2P_DISABLE" if _is_on(env, "NCCL_P2P_DISABLE") else "NCCL_P2P_LEVEL"
        yield Finding(
            text=f"{name}={env[name]}: the GPUs of this host communicate through host memory, not NVLink or "
            "PCIe. Unset it, unless the copies between GPUs above arrive wrong."
        )
    if several and _is_on(env, "NCCL_SHM_DISABLE"):
        yield Finding(
            text=f"NCCL_SHM_DISABLE={env['NCCL_SHM_DISABLE']}: GPUs of this host without a direct link use "
            "the network. Unset it."
        )
    if here.nodes > 1 and active and (_is_on(env, "NCCL_IB_DISABLE") or env.get("NCCL_NET") == "Socket"):
        name = "NCCL_IB_DISABLE" if _is_on(env, "NCCL_IB_DISABLE") else "NCCL_NET"
        yield Finding(
            text=f"{name}={env[name]}: NCCL uses TCP, though {active[0].name} is active "
            f"({active[0].rate}). Unset it."
        )


def for_debugging(env: Environment, here: Situation) -> Iterator[Finding]:
    """Check for settings that are for debugging and make every step slower."""
    if _is_on(env, "CUDA_LAUNCH_BLOCKING") and here.accelerators:
        yield Finding(
            text="CUDA_LAUNCH_BLOCKING=1 makes the CPU wait for each kernel. Unset it for training."
        )
    if env.get("NCCL_DEBUG", "").upper() == "TRACE" and here.backend == "nccl":
        yield Finding(text="NCCL_DEBUG=TRACE writes a line for each call. Use WARN or INFO.", hurts=False)
    if env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        text = "TORCH_DISTRIBUTED_DEBUG=DETAIL compares the ranks before each collective, which costs time."
        yield Finding(text=f"{text} Unset it for training.", hurts=False)


def pinned_alike(env: Environment, here: Situation) -> Iterator[Finding]:
    """Check OpenMP's pinning, which is the same for each rank and puts all of them on the same processors."""
    for name in ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES"):
        value = env.get(name, "")
        explicit = any(character.isdigit() for character in value)
        if here.local_size > 1 and explicit and ("proclist" in value or name != "KMP_AFFINITY"):
            yield Finding(
                text=f"{name}={value} is the same for all {here.local_size} ranks of this host: their "
                "threads share those processors. Unset it, and let the launcher bind the ranks."
            )


RULES: tuple[Rule, ...] = (
    gloo_interface,
    nccl_interface,
    infiniband_adapters,
    switched_off,
    for_debugging,
    pinned_alike,
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


def _is_on(env: Environment, name: str) -> bool:
    return env.get(name, "") not in _OFF


def _loopback(variable: str, value: str, here: Situation) -> Finding:
    return Finding(
        text=f"{variable}={value} is loopback, which reaches this host only, and the job has {here.nodes} "
        "nodes. Set it to the interface between the nodes (see `ip addr`)."
    )


def _names(every: Sequence[Interface]) -> str:
    return ", ".join(one.name for one in every)
