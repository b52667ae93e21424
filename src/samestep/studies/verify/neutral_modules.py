"""Disables or synchronizes what legitimately differs between ranks: batch norm, dropout, compression.

Any difference that remains in a native script is then a fault.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from samestep.autopilot.split.batch_norms import batch_norm_of_slices, batch_norm_over_ranks
from samestep.hooks import verify_declarations
from samestep.hooks.random_draws import RngState, seed_generators
from samestep.hooks.registry import attached_all, instead, wrapping
from samestep.parallel.gradients.batch_norm import uses_batch_statistics
from samestep.ranks.world.process_group import adopt
from samestep.studies.verify.sample_random import per_sample_randomness

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_COMPRESSING = ("powerSGD_hook", "quantization_hooks")  # modules of hooks that round or approximate gradients
_COMPRESSING_NAMES = ("fp16_compress", "bf16_compress")


@contextmanager
def rank_features_disabled() -> Iterator[None]:
    """Disable dropout and compression, make random numbers depend on the sample, and batch norm global."""
    with ExitStack() as stack:
        stack.enter_context(batch_norm_of_slices())
        hooks = {
            **dict.fromkeys(verify_declarations.DROPOUTS, instead(_identity)),
            verify_declarations.ATTENTION: _without_dropout,
            verify_declarations.SEEDED_FETCH: wrapping(_fetch_seeded),
            verify_declarations.GROUP_OF_NORM: wrapping(_over_all_ranks),
            verify_declarations.COMMUNICATION_HOOK: wrapping(_without_compression),
        }
        stack.enter_context(attached_all(hooks))
        stack.enter_context(per_sample_randomness())
        yield


def global_batch_norm() -> AbstractContextManager[None]:
    """Return a context that computes batch norm over the script's process group, if it has one."""
    has_group = dist.is_available() and dist.is_initialized()
    return batch_norm_over_ranks(adopt()) if has_group else nullcontext()


def normalizes_alone(module: nn.Module) -> bool:
    """Return whether a module is a batch norm with the statistics of a part of the ranks."""
    if not isinstance(module, BatchNorm) or not uses_batch_statistics(module):
        return False
    group: Any = getattr(module, "process_group", None)
    is_whole = group is None or group.size() == adopt().place.size
    return not (isinstance(module, nn.SyncBatchNorm) and is_whole)


def compresses(hook: Callable[..., Any]) -> bool:
    """Return whether a communication hook of torch compresses gradients, by its module and name."""
    module = getattr(hook, "__module__", "") or ""
    known = module.removeprefix(_HOOKS)
    is_named = getattr(hook, "__name__", "").startswith(_COMPRESSING_NAMES)
    return known != module and (known in _COMPRESSING or is_named)


def _without_compression(original: Callable[..., None], model: Any, state: Any, hook: Any) -> None:
    """Register a hook that averages gradients as they are in the place of one that compresses them."""
    original(model, *((None, allreduce_hook) if compresses(hook) else (state, hook)))


def _over_all_ranks(original: Callable[..., None], norm: Any, *args: Any, **kwargs: Any) -> None:
    original(norm, *args, **kwargs)
    norm.process_group = None


def _fetch_seeded(original: Callable[[Any, Any], Any], fetcher: Any, indices: Any) -> Any:
    if not isinstance(fetcher.dataset, _SeededDataset):
        fetcher.dataset = _SeededDataset(fetcher.dataset)
    return original(fetcher, indices)


def _identity(input: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:  # noqa: A002 - torch's name
    return input


def _without_dropout(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,  # noqa: ARG001 - replaced by 0
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return call


class _SeededDataset:
    """A data set that seeds the random generators by the index of each sample."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__":  # it fetches a batch at once, which cannot be seeded by sample
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: Any) -> Any:
        before = RngState.now()
        seed_generators(hash(index) % 2**32)
        try:
            return self._inner[index]
        finally:
            before.restore()
