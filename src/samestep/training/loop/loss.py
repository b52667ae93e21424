"""Computes a rank's loss so that the average over the ranks is the loss of the global batch."""

import torch
import torch.nn.functional as F
from torch import Tensor


def share_of_loss(scores: Tensor, labels: Tensor, weight: float, *, label_smoothing: float = 0.0) -> Tensor:
    """Return this rank's part of the mean cross-entropy over the global batch, times the number of ranks.

    The ranks' gradients are averaged, so uneven local batches are weighted here, before any accumulation.
    An empty local batch has passed through the model as well, because global batch norm needs all ranks;
    the sum of its scores is 0, whereas 0 times a mean over nothing is NaN.

    Args:
        scores: (local, classes); converted to float32 or wider.
        labels: (local,), int64.
        weight: local * N / global; see `Batch.weight`.
        label_smoothing: weight of the uniform distribution in the targets. Source: Szegedy et al.,
            "Rethinking the Inception architecture for computer vision", CVPR 2016.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if not len(labels):
        empty: Tensor = scores.sum()
        return empty
    loss = F.cross_entropy(scores, labels, label_smoothing=label_smoothing)
    return loss if weight == 1.0 else loss * weight
