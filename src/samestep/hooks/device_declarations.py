"""Declares every attribute of torch's devices that samestep replaces; see `declarations`."""

from samestep.hooks.registry import Hook

_CUDA = "--device cpu"
_ON_CPU = "a script that names CUDA devices runs on the CPU"
LOADED = Hook("torch", "load", _CUDA, _ON_CPU, arguments=("f", "map_location"))
GENERATOR = Hook("torch", "Generator", _CUDA, _ON_CPU)
DEFAULT_TENSOR_TYPE = Hook("torch", "set_default_tensor_type", _CUDA, _ON_CPU, optional=True)
CUDA_TYPES = tuple(
    Hook("torch.cuda", f"{kind}Tensor", _CUDA, _ON_CPU)
    for kind in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
)
DEVICE_ANSWERS = tuple(
    Hook(owner, name, _CUDA, "the script sees one GPU, libraries see none")
    for owner, name in (
        ("torch.cuda", "is_available"),
        ("torch.cuda", "device_count"),
        ("torch.accelerator", "is_available"),
        ("torch.accelerator", "device_count"),
        ("torch.accelerator", "current_accelerator"),
    )
)

_GLOO = "native scripts: --device cpu"
GLOO_GROUPS = tuple(
    Hook(owner, name, _GLOO, "Gloo replaces NCCL")
    for owner in ("torch.distributed", "torch.distributed.distributed_c10d")
    for name in ("init_process_group", "new_group")
)
DEVICES_OF_BARRIER = Hook(
    "torch.distributed",
    "barrier",
    _GLOO,
    "Gloo takes no devices",
    arguments=("group", "async_op", "device_ids"),
)
DEVICES_OF_DDP = Hook(
    "torch.nn.parallel:DistributedDataParallel",
    "__init__",
    _GLOO,
    "a model on the CPU has no device_ids",
    arguments=("self", "module", "device_ids", "output_device"),
)
SYNCHRONIZED_NORM = Hook(
    "torch.nn:SyncBatchNorm", "forward", _GLOO, "torch computes it on GPUs only", arguments=("self", "input")
)
NORMS_OF_DDP = Hook(
    "torch.nn.parallel:DistributedDataParallel",
    "_passing_sync_batchnorm_handle",
    _GLOO,
    "torch refuses SyncBatchNorm on the CPU",
)


def cuda(name: str) -> Hook:
    """Return the hook of a function or class of ``torch.cuda`` that ``--device cpu`` replaces."""
    return Hook("torch.cuda", name, _CUDA, _ON_CPU, optional=True)


def accelerator(name: str) -> Hook:
    """Return the hook of a function of ``torch.accelerator`` that ``--device cpu`` replaces."""
    return Hook("torch.accelerator", name, _CUDA, _ON_CPU, optional=True)
