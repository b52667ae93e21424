"""Finds scripts of training libraries, and whether they ask the library for several devices.

These libraries train on one device unless the script asks for more, or a launcher's variables do. A script
that asks for one device, or says nothing, is a serial script; one that asks for several, or names a strategy
for them, is started natively, and the library splits the work.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from samestep.launch.source.names import Names, is_one_of, prefixed

_LIGHTNING = (
    *prefixed(
        "lightning", "Trainer", "Fabric", "fabric.Fabric", "pytorch.Trainer", "pytorch.cli.LightningCLI"
    ),
    *prefixed("pytorch_lightning", "Trainer", "cli.LightningCLI"),
    "lightning_fabric.Fabric",
)
_TRANSFORMERS = (
    *prefixed("transformers", "Trainer", "Seq2SeqTrainer"),
    *prefixed("transformers", "trainer.Trainer", "trainer_seq2seq.Seq2SeqTrainer"),
    "trl",
)
_ACCELERATE = prefixed("accelerate", "Accelerator", "PartialState")
_COMPOSER = prefixed("composer", "Trainer", "trainer.Trainer")

LIBRARIES = (
    *_LIGHTNING,
    *_TRANSFORMERS,
    *_ACCELERATE,
    *_COMPOSER,
    "timm.utils.init_distributed_device",
    "mmengine.runner.Runner",
)
"""Calls that train on one device, or on several if they are asked to."""

_STRATEGIES = (
    *prefixed("lightning", "pytorch.strategies", "fabric.strategies"),
    *prefixed("pytorch_lightning", "strategies", "plugins.DDPPlugin"),
    "lightning_fabric.strategies",
    *prefixed("accelerate", "DistributedDataParallelKwargs", "utils.DistributedDataParallelKwargs"),
    *prefixed("accelerate", "FullyShardedDataParallelPlugin", "utils.FullyShardedDataParallelPlugin"),
    *prefixed("accelerate", "DeepSpeedPlugin", "utils.DeepSpeedPlugin", "ParallelismConfig"),
)
"""Calls that create a strategy for several devices."""
_ONE_DEVICE_STRATEGY = "SingleDevice"

_UNSET = ("", "none", "null", "false", "no", "0", "-1")
_Asks = Callable[[object], bool]  # whether the value of an argument asks for several devices


def _count(value: object) -> bool:
    """Return whether a number of devices, a list of them, or a text of either is of several."""
    if isinstance(value, str):
        parts = [part for part in value.strip("[]() ").split(",") if part]
        return len(parts) > 1 or (value.lstrip("-").isdecimal() and _count(int(value)))
    if isinstance(value, (list, tuple)):
        return len(value) > 1
    return isinstance(value, int) and (value > 1 or value == -1)


def _strategy(value: object) -> bool:
    return _is_set(value) and isinstance(value, str) and value not in ("auto", "single_device", "single_tpu")


def _is_set(value: object) -> bool:
    return str(value).lower() not in _UNSET and bool(value)


_DEVICES: Mapping[str, _Asks] = MappingProxyType(
    {
        **dict.fromkeys(("devices", "num_nodes", "gpus", "num_processes", "tpu_cores"), _count),
        "strategy": _strategy,
        "accelerator": lambda value: isinstance(value, str) and value.startswith("ddp"),
    }
)
_SHARDING: Mapping[str, _Asks] = MappingProxyType(
    dict.fromkeys(
        (
            *("fsdp", "fsdp_config", "fsdp_plugin", "deepspeed", "deepspeed_config", "deepspeed_plugin"),
            *("ddp_backend", "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"),
            *("megatron_lm_plugin", "parallelism_config", "torch_tp_plugin"),
        ),
        _is_set,
    )
    | {"tp_size": _count}
)
_ARGUMENTS: tuple[tuple[tuple[str, ...], Mapping[str, _Asks]], ...] = (
    (_LIGHTNING, _DEVICES),
    ((*_TRANSFORMERS, *_ACCELERATE, *_COMPOSER, "transformers"), _SHARDING),
    (("mmengine.runner.Runner",), MappingProxyType({"launcher": _strategy})),
)
"""Arguments of calls, by name, that can ask for several devices."""
_FLAGS: Mapping[str, _Asks] = MappingProxyType({**_DEVICES, **_SHARDING, "launcher": _strategy})
"""Flags of a program, from which such arguments are made."""
_FROM_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def asks_for_several(nodes: Iterable[ast.AST], names: Names) -> Iterator[tuple[str, int]]:
    """Yield each call and its line by which code asks a library for several devices.

    A value that is not in the text, such as one from a configuration file, asks for nothing. A launcher's
    variable that is read without a default does: the code cannot run without a launcher.
    """
    for node in nodes:
        if isinstance(node, ast.Call):
            for name in names.full(node.func):
                if is_one_of(name, _STRATEGIES) and _ONE_DEVICE_STRATEGY not in name:
                    yield name, node.lineno
                yield from ((f"{name}({word}=..)", node.lineno) for word in _asking_arguments(name, node))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if key in _FROM_LAUNCHERS and "os.environ" in names.full(node.value):
                yield f"os.environ[{key!r}]", node.lineno


def flag_asking_for_several(arguments: Sequence[str]) -> str:
    """Return the flag of a program's arguments that asks a library for several devices; empty without one."""
    for position, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--"):
            continue
        following = [one for one in arguments[position + 1 : position + 2] if not one.startswith("--")]
        text = value if equals else following[0] if following else "True"
        asks = _FLAGS.get(flag.lstrip("-").rpartition(".")[2].replace("-", "_"))
        if asks is not None and asks(text):
            return flag
    return ""


def _asking_arguments(name: str, call: ast.Call) -> Iterator[str]:
    for calls, arguments in _ARGUMENTS:
        if not is_one_of(name, calls):
            continue
        for keyword in call.keywords:
            asks = arguments.get(keyword.arg or "")
            if asks is not None and asks(_literal(keyword.value)):
                yield str(keyword.arg)


def _literal(value: ast.expr) -> object:
    """Return the value of a literal; None for any other expression."""
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
