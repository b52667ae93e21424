"""The loss of one rank's share, so weighted that the ranks' average is the global batch's."""

import torch
import torch.nn.functional as F
from torch import Tensor


def share_of_loss(scores: Tensor, labels: Tensor, weight: float, *, label_smoothing: float = 0.0) -> Tensor:
    """Return this rank's part of the mean cross-entropy over the global batch, times the number of ranks.

    The ranks' gradients are averaged, so the factor that makes uneven shares right acts here, upstream of
    every accumulation. An empty share has run through the model all the same, because global batch norm
    needs all ranks; the sum over its no scores is 0, never 0 times NaN.

    Args:
        scores: (local, classes); computed in at least float32 from here on.
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
