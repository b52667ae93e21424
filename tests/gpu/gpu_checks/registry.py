"""Lists the checks: what each needs, its time limit, and what it shows."""

from dataclasses import dataclass

from gpu_checks.scripts_table import SCRIPTS, Script
from samestep.base.errors import UsageError

CUDA = ("cuda",)
ANY = ("cuda", "xpu")
"""Device types by torch's names; ROCm's is ``cuda``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check."""

    name: str  # what ``--only`` selects
    # module in this folder, function, and its arguments after the context, such as ``device_checks:memory``
    # or ``command_checks:figures:batch_norm``
    function: str
    shows: str  # what holds if it succeeds
    gpus: int = 1  # number of GPUs that it needs
    seconds: float = 60.0  # time limit
    alone: bool = False  # whether it times something, so that no other check runs beside it
    types: tuple[str, ...] = ANY  # device types that it can run on
    on_cpu: bool = True  # whether the CPU can run it, which tests its code
    shareable: bool = False  # whether two ranks on one GPU will do, over NCCL
    only_one: bool = False  # whether it applies to a machine with one GPU only


def _recipe(name: str, function: str, shows: str, seconds: float = 90.0, *, on_cpu: bool = True) -> Check:
    function = f"recipe_checks:{function}"
    return Check(name=f"recipe-{name}", function=function, shows=shows, seconds=seconds, on_cpu=on_cpu)


def _script(name: str, script: Script) -> Check:
    return Check(
        name=name,
        function=f"script_checks:compared:{name}",
        shows=f"{script.shows}: losses of one process",
        seconds=script.seconds,
        types=CUDA,
        on_cpu=script.on_cpu,
    )


def _ranks(name: str, function: str, shows: str, *, shareable: bool = True) -> Check:
    function = f"command_checks:{function}"
    return Check(name=name, function=function, shows=shows, gpus=2, seconds=90.0, shareable=shareable)


CHECKS: tuple[Check, ...] = (
    Check(name="device-facts", function="device_checks:facts", shows="detection, names, counts, binding"),
    Check(
        name="device-copies",
        function="device_checks:copies",
        shows="copies from and to it arrive right",
        alone=True,
    ),
    Check(name="memory", function="device_checks:memory", shows="the peak memory is that of the allocator"),
    Check(name="random-state", function="device_checks:random_state", shows="states are saved and restored"),
    Check(name="staging", function="device_checks:staging", shows="a snapshot is not changed by later steps"),
    Check(name="identity", function="device_checks:identity_of_bits", shows="digests of bits repeat"),
    Check(
        name="waiting",
        function="device_checks:waiting",
        shows="timed regions wait for queued kernels",
        alone=True,
    ),
    Check(name="loader", function="device_checks:loader", shows="batches of pinned memory arrive right"),
    Check(
        name="forking", function="device_checks:forking", shows="workers are not forked from an open device"
    ),
    Check(name="doctor", function="command_checks:doctor", shows="doctor reports the device"),
    Check(
        name="doctor-copies",
        function="command_checks:doctor_copies",
        shows="doctor copies between all GPUs and compares",
        gpus=2,
        types=CUDA,
        on_cpu=False,
    ),
    _recipe("fp32", "against_cpu:fp32", "losses of the CPU"),
    _recipe("bf16", "against_cpu:bf16", "losses of the CPU"),
    _recipe("fp16", "against_cpu:fp16", "losses of the CPU, with loss scaling"),
    _recipe("channels-last", "against_cpu:fp32:--channels-last", "losses of the CPU"),
    _recipe("compile", "compile", "losses of the CPU", 120.0, on_cpu=False),
    Check(name="exact-bits", function="recipe_checks:exact_bits", shows="equal weights when repeated"),
    Check(
        name="checkpoint-devices",
        function="recipe_checks:checkpoint_devices",
        shows="a run of one device resumes on another",
        seconds=120.0,
    ),
    Check(name="profile", function="recipe_checks:profile", shows="a trace of steps is written"),
    *(_script(name, script) for name, script in SCRIPTS.items()),
    Check(
        name="autopilot-graphs",
        function="script_checks:graphs",
        shows="CUDA graphs: losses of one process, also on two ranks",
        seconds=90,
        types=CUDA,
        on_cpu=False,
    ),
    Check(
        name="verify-cpu",
        function="command_checks:verify_on_cpu",
        shows="verify of a script for GPUs on CPUs",
        seconds=90,
        types=CUDA,
    ),
    Check(
        name="verify",
        function="command_checks:verify",
        shows="verify on 1 and 2 GPUs: same",
        gpus=2,
        seconds=90,
        types=CUDA,
        on_cpu=False,
        shareable=True,
    ),
    Check(
        name="spawned",
        function="command_checks:spawned",
        shows="a script that calls mp.spawn",
        types=CUDA,
    ),
    Check(
        name="clock-events",
        function="clock_checks:events",
        shows="times of events agree with the profiler",
        alone=True,
        types=CUDA,
        on_cpu=False,
    ),
    Check(
        name="clock-graphs",
        function="clock_checks:graphs",
        shows="a capture is not disturbed, and is no step",
        types=CUDA,
        on_cpu=False,
    ),
    Check(
        name="clock-run",
        function="clock_checks:run",
        shows="phases add up to steps",
        alone=True,
        types=CUDA,
    ),
    Check(
        name="one-gpu-refused",
        function="command_checks:one_gpu_refused",
        shows="two NCCL ranks on one GPU are refused with the reason",
        types=CUDA,
        on_cpu=False,
        only_one=True,
    ),
    _ranks("synchronizers", "figures:synchronizers", "gradients of one process, and of DDP"),
    _ranks("batch-norm", "figures:batch_norm", "global batch norm of one process, and SyncBatchNorm"),
    _ranks("exact-ranks", "figures:exact_ranks", "--exact: bits of one rank"),
    _ranks("sanitize", "sanitize", "equal ranks are not reported"),
    _ranks("watchdog", "watchdog", "a kernel that hangs is reported with its rank"),
)


def by_name(name: str) -> Check:
    """Return the check of this name."""
    return selected(name)[0]


def selected(names: str) -> list[Check]:
    """Return the checks of these names, separated by commas; all for an empty text.

    Raises:
        UsageError: there is no such check.
    """
    wanted = [name for name in names.split(",") if name]
    known = {one.name: one for one in CHECKS}
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(f"--only {unknown[0]} is no check; choose from {', '.join(known)}")
    return [known[name] for name in wanted] or list(CHECKS)
