"""Disables or synchronizes what legitimately differs between ranks (batch norm, dropout, augmentation).

Any difference that remains in a native script is then a fault.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data._utils.fetch import _MapDatasetFetcher as Fetcher

from samestep.autopilot.split.batch_norms import batch_norm_of_slices, batch_norm_over_ranks
from samestep.hooks.random_draws import RngState, seed_generators
from samestep.ranks.world.process_group import adopt
from samestep.studies.verify.sample_random import per_sample_randomness

_DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)


@contextmanager
def rank_features_disabled() -> Iterator[None]:
    """Disable dropout, make random numbers depend on the sample only, and let batch norm be global."""
    with ExitStack() as stack:
        stack.enter_context(batch_norm_of_slices())
        for name in _DROPOUTS:
            stack.enter_context(patch.object(F, name, _identity))
        attention: Callable[..., Tensor] = F.scaled_dot_product_attention
        stack.enter_context(patch.object(F, "scaled_dot_product_attention", _without_dropout(attention)))
        original: Callable[[Any, Any], Any] = Fetcher.fetch

        def fetch(fetcher: Any, indices: Any) -> Any:
            if not isinstance(fetcher.dataset, _SeededDataset):
                fetcher.dataset = _SeededDataset(fetcher.dataset)
            return original(fetcher, indices)

        stack.enter_context(patch.object(Fetcher, "fetch", fetch))
        stack.enter_context(per_sample_randomness())
        yield


def global_batch_norm() -> AbstractContextManager[None]:
    """Return a context that computes batch norm over the script's process group, if it has one."""
    has_group = dist.is_available() and dist.is_initialized()
    return batch_norm_over_ranks(adopt()) if has_group else nullcontext()


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
    """A data set that seeds the random generators by the index of each sample.

    Args:
        inner: the original data set.
    """

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
