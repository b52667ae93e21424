"""What workers of a native script may do apart, made one or off: to show that nothing else differs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data._utils.fetch import _MapDatasetFetcher as Fetcher

from samestep.autopilot.norms import batch_norm_of_slices, batch_norm_over_ranks
from samestep.study.own_draws import draws_of_samples
from samestep.watch.drawn import RngState, seed_generators
from samestep.world.process_group import adopt

_DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)


@contextmanager
def neutralised() -> Iterator[None]:
    """Within, batch norm can be global, dropout drops nothing, and a sample's random numbers are its own."""
    with ExitStack() as stack:
        stack.enter_context(batch_norm_of_slices())
        for name in _DROPOUTS:
            stack.enter_context(patch.object(F, name, _kept))
        attention: Callable[..., Tensor] = F.scaled_dot_product_attention
        stack.enter_context(patch.object(F, "scaled_dot_product_attention", _without_dropout(attention)))
        original: Callable[[Any, Any], Any] = Fetcher.fetch

        def fetch(fetcher: Any, indices: Any) -> Any:
            if not isinstance(fetcher.dataset, _Seeded):
                fetcher.dataset = _Seeded(fetcher.dataset)
            return original(fetcher, indices)

        stack.enter_context(patch.object(Fetcher, "fetch", fetch))
        stack.enter_context(draws_of_samples())
        yield


def over_the_group() -> AbstractContextManager[None]:
    """Return what makes batch norm global over the ranks of the script's group, if it has one."""
    has_group = dist.is_available() and dist.is_initialized()
    return batch_norm_over_ranks(adopt()) if has_group else nullcontext()


def _kept(input: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:  # noqa: A002 - as torch calls it
    return input


def _without_dropout(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,  # noqa: ARG001 - what is left out
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return call


class _Seeded:
    """A data set whose samples are drawn from seeds of their own.

    Args:
        inner: the data set.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__":  # a whole batch at once could not be seeded by sample
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
