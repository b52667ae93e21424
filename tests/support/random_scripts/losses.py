"""Lists the losses of scripts, and the terms that are added to them."""

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True)
class Loss:
    """Lines that compute `loss` of `out` and `y`.

    Attributes:
        name: the name for the script's first line.
        lines: the source lines; they may read `w`, a weight for each sample, or `m`, a mask of samples.
        needs: the name that they read of these two; empty for neither.
        ignores: whether labels of -100 are ignored.
        weight: the relative frequency of this loss.
    """

    name: str
    lines: str
    needs: str = ""
    ignores: bool = False
    weight: float = 1.0


def _masked(each):
    """Return losses that reduce `each`, an expression for the loss of each sample."""
    return (
        Loss("masked mean", f"each = {each}\nloss = (each * m).sum() / m.sum()", "m"),
        Loss("masked sum, multiplied", f"each = {each}\nloss = (each * m).sum() * (1.0 / m.sum())", "m"),
        Loss("mean where the mask is set", f"each = {each}\nloss = each[m > 0].mean()", "m"),
        Loss("mean of all, masked", f"each = {each}\nloss = (each * m).mean()", "m"),
        Loss(
            "masked mean, clamped",
            f"each = {each}\nloss = (each * m).sum() / m.sum().clamp(min=2)",
            "m",
            weight=0.5,
        ),
        Loss(
            "masked by itself, clamped",
            f"each = {each}\nkept = (each.detach() > 1.2).to(each.dtype)\n"
            "loss = (each * kept).sum() / kept.sum().clamp(min=1) + 0.1 * each.mean()",
        ),
        Loss(
            "masked by itself, with a small divisor",
            f"each = {each}\nkept = (each.detach() > 1.2).to(each.dtype)\n"
            "loss = (each * kept).sum() / (kept.sum() + 1e-3) + 0.1 * each.mean()",
            weight=0.5,
        ),
        Loss(
            "of the greatest, if there are",
            f"each = {each}\nkept = each[each.detach() > 1.2]\n"
            "loss = kept.mean() + 0.1 * each.mean() if len(kept) else 0.1 * each.mean()",
            weight=0.5,
        ),
        Loss("weighted mean", f"each = {each}\nloss = (each * w).sum() / w.sum()", "w"),
        Loss("weighted sum by a number", f"each = {each}\nloss = (each * w).sum() / 4", "w"),
        Loss("root of the mean", f"each = {each}\nloss = each.mean().sqrt()", weight=0.5),
        Loss("logarithm of the sum", f"each = {each}\nloss = torch.log1p(each.sum())", weight=0.5),
        Loss("mean plus greatest", f"each = {each}\nloss = each.mean() + 0.1 * each.max()", weight=0.3),
        Loss("divided by the length", f"each = {each}\nloss = each.sum() / len(y)"),
        Loss("deviation", f"each = {each}\nloss = each.mean() + 0.1 * each.std(unbiased=False)", weight=0.3),
    )


LOSSES = {
    "class": (
        Loss("cross entropy", "loss = F.cross_entropy(out, y)", ignores=True, weight=4),
        Loss(
            "class weights", "loss = F.cross_entropy(out, y, weight=torch.linspace(0.5, 2, K))", ignores=True
        ),
        Loss("label smoothing", "loss = F.cross_entropy(out, y, label_smoothing=0.1)", ignores=True),
        Loss("sum of cross entropies", 'loss = F.cross_entropy(out, y, reduction="sum") / 4', ignores=True),
        Loss("negative log-likelihood", "loss = F.nll_loss(F.log_softmax(out, -1), y)", ignores=True),
        Loss(
            "cross entropy and entropy",
            "loss = F.cross_entropy(out, y)\n"
            "p = out.softmax(-1)\n"
            "loss = loss - 0.1 * -(p * p.log()).sum(-1).mean()",
            ignores=True,
        ),
        Loss(
            "counted by hand",
            'each = F.cross_entropy(out, y, reduction="none")\nloss = each.sum() / (y != -100).sum()',
            ignores=True,
        ),
        Loss("margin", "loss = F.multi_margin_loss(out, y)", weight=0.5),
        *_masked('F.cross_entropy(out, y, reduction="none")'),
    ),
    "values": (
        Loss("squares", "loss = F.mse_loss(out, y)", weight=3),
        Loss("sum of squares", 'loss = 0.1 * F.mse_loss(out, y, reduction="sum")'),
        Loss("Huber", "loss = F.huber_loss(out, y)"),
        Loss("smooth absolute", "loss = F.smooth_l1_loss(out, y)"),
        Loss("absolute", "loss = (out - y).abs().mean()"),
        Loss("squares and signs", "loss = F.mse_loss(out, y) + 0.1 * F.soft_margin_loss(out, y.sign())"),
        Loss(
            "likelihood",
            "loss = F.gaussian_nll_loss(out[:, 0], y[:, 0], F.softplus(out[:, 1]) + 0.1)",
            weight=0.5,
        ),
        Loss("cosine", "loss = 1 - F.cosine_similarity(out, y, dim=-1).mean()", weight=0.5),
        Loss("sum of squares by number", "loss = ((out - y) ** 2).sum() / out.size(0)"),
        *_masked("(out - y).pow(2).mean(-1)"),
    ),
    "binary": (
        Loss("binary cross entropy", "loss = F.binary_cross_entropy_with_logits(out, y)", weight=3),
        Loss(
            "weighted binary cross entropy",
            "twice = torch.full((K,), 2.0)\n"
            "loss = F.binary_cross_entropy_with_logits(out, y, weight=w[:, None], pos_weight=twice)",
            "w",
        ),
        Loss("of probabilities", "loss = F.binary_cross_entropy(torch.sigmoid(out), y)"),
        *_masked('F.binary_cross_entropy_with_logits(out, y, reduction="none").mean(-1)'),
    ),
    "tags": (
        Loss(
            "cross entropy", "loss = F.cross_entropy(out.flatten(0, 1), y.flatten())", ignores=True, weight=3
        ),
        Loss(
            "cross entropy over classes in the middle",
            "loss = F.cross_entropy(out.movedim(-1, 1), y)",
            ignores=True,
        ),
        Loss(
            "sum by the number of tags",
            'each = F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none")\n'
            "loss = each.sum() / (y != -100).sum()",
            ignores=True,
            weight=2,
        ),
        Loss(
            "masked, multiplied",
            "there = (y != -100).flatten().to(out.dtype)\n"
            'each = F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none")\n'
            "loss = (each * there).sum() * (1.0 / there.sum())",
            ignores=True,
        ),
        Loss(
            "mean of each sequence first",
            "there = (y != -100).to(out.dtype)\n"
            'each = F.cross_entropy(out.movedim(-1, 1), y, reduction="none")\n'
            "loss = ((each * there).sum(TIME) / there.sum(TIME)).mean()",
            ignores=True,
        ),
        Loss(
            "of the tags that are there",
            "there = y != -100\nloss = F.cross_entropy(out[there], y[there])",
            ignores=True,
        ),
        Loss(
            "sum of cross entropies",
            'loss = F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum") / 20',
            ignores=True,
        ),
    ),
}
"""By the kind of targets: a class, values, or zeros and ones for each sample; a tag for each time step."""


@dataclass(frozen=True)
class Extra:
    """An expression of the features `h` that is added to the loss."""

    name: str
    expression: str
    weight: float = 1.0


EXTRAS = (
    Extra("activations", "h.pow(2).mean()", 2),
    Extra("activations by samples", "h.pow(2).sum() / h.size(0)"),
    Extra("each sample's norm", "h.flatten(1).norm(dim=1).mean()"),
    Extra("load balance", "h.softmax(-1).flatten(0, -2).mean(0).pow(2).sum()"),
    Extra("mean of the batch", "h.flatten(0, -2).mean(0).pow(2).sum()"),
    Extra("weights", "sum(p.pow(2).sum() for p in self.parameters())", 0.7),
    Extra("spread", "h.flatten(0, -2).var(0, unbiased=False).mean()", 0.7),
    Extra("greatest", "h.abs().max()", 0.5),
    Extra("each sample's activations", "h.pow(2).flatten(1).mean(1)", 0.7),
)

CONTRASTS = (
    Loss(
        "pairs",
        "near = (y[:, None] == y[None]).to(out.dtype)\n"
        "apart = torch.cdist(out, out.detach() + 0.1)\n"
        "loss = (near * apart + (1 - near) * F.relu(2 - apart)).mean()",
    ),
    Loss(
        "similarities",
        "z = F.normalize(out, dim=-1)\nloss = F.cross_entropy(z @ z.t() / 0.5, torch.arange(len(z)))",
    ),
    Loss("centered", "loss = F.cross_entropy(out - out.mean(0), y)"),
)
"""Losses that compare samples, for classes."""


def source(loss, layout):
    """Return the lines of a loss for the layout of the sequences."""
    return dedent(loss.lines).replace("TIME", str(layout.time))
