"""Lists what scripts do beside layers, losses and loops, a few lines each, which compose with all others."""

from dataclasses import dataclass, fields, replace
from textwrap import dedent

from support.random_scripts.parts import Part


@dataclass(frozen=True)
class Feature(Part):
    """Lines of a model and of its loop that belong together; `_N` is their own place, `ROWS` that of samples.

    Attributes:
        top: lines before the class of the model.
        given: the value of one more argument `given_N` of `forward`, in each step.
        first: lines before the loop; the model and its optimizer are there.
        before: lines before each step.
        context: the context of each call in training.
        result: lines that change the result `out` of a model without a loss of its own.
        between: lines between the loss and its backward; LBFGS has them in its closure.
        after: lines after each step.
        last: lines at the end of the script.
        needs: what it reads in a loop: `out` or `x`; empty for neither.
        place: what `_N` stands for.
    """

    top: str = ""
    given: str = ""
    first: str = ""
    before: str = ""
    context: str = ""
    result: str = ""
    between: str = ""
    after: str = ""
    last: str = ""
    needs: str = ""
    place: str = ""

    def __post_init__(self):
        for name in _LINES:
            object.__setattr__(self, name, dedent(getattr(self, name)).strip("\n"))

    def at(self, index, rows="0"):
        """Return the feature with names that contain this index, for samples along the dimension `rows`."""
        lines = {name: getattr(self, name) for name in _LINES}
        placed = {name: text.replace("_N", f"_{index}").replace("ROWS", rows) for name, text in lines.items()}
        return replace(self, place=index, **placed)


_LINES = [
    field.name
    for field in fields(Feature)
    if field.type is str and field.name not in ("name", "needs", "place")
]
"""The fields that hold source lines."""
_FEATURE = "h.detach().flatten(0, -2)"
"""The rows of features, as a call may keep them."""


def _hook(name, line, **others):
    """Return a feature that attaches a hook to `layer`, the first of the model, or to `p`, its weight."""
    return Feature(
        name,
        first=f"layer = next(iter(model.children()))\np = next(layer.parameters())\n{line}",
        weight=0.4,
        **others,
    )


def _function(name, backward):
    """Return a feature with an autograd function whose backward gets the gradient `g` and its input `h`."""
    return Feature(
        f"own backward that {name}",
        top=f"""

        class Own_N(torch.autograd.Function):
            @staticmethod
            def forward(ctx, h):
                ctx.save_for_backward(h)
                return h.clone()

            @staticmethod
            def backward(ctx, g):
                h, = ctx.saved_tensors
                return {backward}
        """,
        forward="h = Own_N.apply(h)",
        weight=0.5,
    )


def _replaced(name, function, changed):
    """Return a feature that replaces a function of torch in every second step."""
    return Feature(
        f"{name} replaced",
        top=f"real_N = {function}",
        before=f"{function} = (real_N, lambda *a, **k: {changed})[step % 2]",
        after=f"{function} = real_N",
        weight=0.5,
    )


STATES = (
    Feature(
        "features of the last call in a list",
        "self.kept_N = []",
        f"""
        if self.kept_N:
            h = h + 0.1 * self.kept_N[-1].mean()
        if torch.is_grad_enabled():
            self.kept_N.append({_FEATURE})
        """,
    ),
    Feature(
        "compared with the last call",
        "self.last_N = None",
        f"""
        if self.last_N is not None:
            h = h + 0.1 * torch.softmax(h @ self.last_N.t(), -1) @ self.last_N
        if torch.is_grad_enabled():
            self.last_N = {_FEATURE}
        """,
        weight=0.6,
    ),
    Feature(
        "sums in a dict",
        'self.sums_N = {"h": torch.zeros(D), "count": 0}',
        f"""
        if torch.is_grad_enabled():
            self.sums_N["h"] = self.sums_N["h"] + {_FEATURE}.sum(0)
            self.sums_N["count"] += h[..., 0].numel()
            h = h - 0.1 * self.sums_N["h"] / self.sums_N["count"]
        """,
        weight=0.6,
    ),
    Feature(
        "a bias moved by signs",
        'self.register_buffer("bias_N", torch.zeros(D))',
        f"""
        h = h + self.bias_N
        if self.training:
            self.bias_N.add_(0.01 * ({_FEATURE}.mean(0) - 0.3).sign())
        """,
    ),
    Feature(
        "losses kept by the loop",
        "self.losses_N = []",
        "h = h * (1 + 0.1 * sum(self.losses_N[-2:]))",
        after="model.losses_N.append(loss.item())",
    ),
    Feature(
        "a tensor written by the loop",
        "self.scale_N = torch.ones(D)",
        "h = h * self.scale_N",
        after="model.scale_N.mul_(0.9)",
    ),
    Feature(
        "a tensor replaced by the loop",
        "self.scale_N = [torch.ones(D)]",
        "h = h * self.scale_N[0]",
        after="model.scale_N[0] = 0.9 * model.scale_N[0]",
    ),
    Feature(
        "a number in a global dict",
        top="STATE_N = {'scale': 1.0}",
        forward="h = h * STATE_N['scale']",
        after="STATE_N['scale'] *= 0.9",
    ),
    Feature(
        "a draw in a cached function",
        top="SCALE_N = [0.5]\n\n\n@functools.cache\n"
        "def scale_N(mode):\n    return SCALE_N[0] + random.random()",
        forward="h = h * scale_N(self.training)",
        after="SCALE_N[0] += 1\nif step == 1:\n    scale_N.cache_clear()",
    ),
    Feature(
        "a mean kept at the first call only",
        forward=f"""
        if not hasattr(self, "mean_N"):
            self.mean_N = {_FEATURE}.mean(0).clone()
        h = h - 0.1 * self.mean_N
        """,
        weight=0.6,
    ),
    Feature(
        "rows written in place",
        "self.side_N = nn.Linear(D, D)",
        "h = h.clone()\nh[..., :2] = 0.5\nh = h + self.side_N(h)\nh.mul_(0.5)",
    ),
    Feature(
        "a memory of features",
        'self.register_buffer("memory_N", torch.zeros(4, D))',
        f"""
        h = h + 0.1 * torch.softmax(h.detach() @ self.memory_N.t(), -1) @ self.memory_N.clone()
        if self.training:
            self.memory_N = torch.cat([{_FEATURE}, self.memory_N])[:4].clone()
        """,
        weight=0.6,
    ),
    Feature("rounded to bfloat16", forward="h = h + (h.bfloat16().to(h.dtype) - h).detach()"),
    Feature(
        "a tensor of half precision",
        "self.low_N = torch.randn(D).bfloat16()",
        "h = h + (h.detach().bfloat16() * self.low_N).to(h.dtype)",
    ),
)

WEIGHTS = (
    Feature(
        "weights rounded for each call",
        before="real_N = [p.data for p in model.parameters()]\n"
        "for p in model.parameters():\n    p.data = p.data.round(decimals=3)",
        between="for p, data in zip(model.parameters(), real_N):\n    p.data = data",
        weight=0.6,
    ),
    Feature(
        "new data of weights",
        after="for p in list(model.parameters())[:2]:\n    p.data = 0.99 * p.data.clone()",
    ),
    Feature(
        "weights in other strides",
        after="p = next(model.parameters())\np.data = p.data.transpose(0, -1).contiguous().transpose(0, -1)",
        needs="out",  # not with LBFGS, which views weights as vectors
    ),
    Feature(
        "weights written before the backward",
        between="for p in list(model.parameters())[-2:]:\n    p.data.mul_(0.99)",
        weight=0.6,
    ),
    Feature(
        "thawed in every second step",
        "self.side_N = nn.Linear(D, D)",
        "h = h + self.side_N(h)",
        before="model.side_N.requires_grad_(step % 2 == 0)",
    ),
    Feature(
        "frozen between call and backward",
        "self.side_N = nn.Linear(D, D)",
        "h = h + self.side_N(h)",
        between="model.side_N.requires_grad_(step % 2 == 0)",
        after="model.side_N.requires_grad_(True)",
        weight=0.6,
    ),
    Feature(
        "a layer replaced",
        "self.side_N = nn.Linear(D, D)",
        "h = h + self.side_N(h)",
        before="if step == 2:\n    model.side_N = nn.Linear(D, D) if epoch else copy.deepcopy(model.side_N)",
    ),
    Feature(
        "a method of the model replaced",
        top="def half_N(self, h):\n    return 0.5 * h",
        init="self.after_N = lambda h: h",
        forward="h = self.after_N(h)",
        before="if step == 2:\n    model.after_N = half_N.__get__(model)",
    ),
)

HOOKS = (
    _hook("a forward hook", "layer.register_forward_hook(lambda m, a, o: 0.9 * o)"),
    _hook("a forward hook that centers", "layer.register_forward_hook(lambda m, a, o: o - 0.5 * o.mean(0))"),
    _hook(
        "a forward hook of the model that counts",
        "calls_N = []\nmodel.register_forward_hook(lambda m, a, o: calls_N.append(len(calls_N)))",
        last="print(len(calls_N))",
    ),
    _hook(
        "a hook before a layer",
        "if layer.weight.dim() > 1 and not isinstance(layer, nn.Embedding):\n"
        "    layer.register_forward_pre_hook(lambda m, a: (a[0] * (1 + 0.1 * m.training),))",
    ),
    _hook(
        "a backward hook",
        "layer.register_full_backward_hook(lambda m, i, o: None if i[0] is None else (0.5 * i[0],))",
    ),
    _hook(
        "a hook before a backward",
        "layer.register_full_backward_pre_hook(lambda m, o: (o[0] / (0.1 + o[0].norm()),))",
    ),
    _hook("a hook on a gradient", "p.register_hook(lambda g: 0.5 * g.clamp(-0.1, 0.1))"),
    _hook(
        "a hook that notes gradients",
        "norms_N = []\np.register_hook(lambda g: norms_N.append(g.norm().item()))",
        last="print(len(norms_N), f'{sum(norms_N):.10f}')",
    ),
    _hook(
        "a hook after accumulation",
        "p.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', 0.5 * p.grad))",
    ),
    _hook("a hook removed", "handle_N = p.register_hook(lambda g: 0 * g)", after="handle_N.remove()"),
    Feature(
        "a hook on features",
        forward="if h.requires_grad:\n    h.register_hook(lambda g: g.clamp(-0.01, 0.01))",
        weight=0.5,
    ),
    Feature(
        "a hook on features that centers",
        forward="if h.requires_grad:\n    h.register_hook(lambda g: g - g.mean(ROWS, keepdim=True))",
        weight=0.5,
    ),
    Feature("a hook on the loss", between="loss.register_hook(lambda g: 0.5 * g)", weight=0.5),
    Feature(
        "the output's gradient kept",
        between="out.retain_grad()",
        after="print('none' if out.grad is None else f'{out.grad.norm().item():.10f}')",
        needs="out",
        weight=0.5,
    ),
)

FUNCTIONS = (
    _function("halves", "0.5 * g"),
    _function("clips", "g.clamp(-0.01, 0.01)"),
    _function("takes signs", "0.01 * g.sign()"),
    _function("centers", "g - g.mean(0)"),
    _function("divides by the norm", "g / (0.1 + g.norm())"),
    _function("reads its input", "g * (1 - h * h)"),
    _replaced("tanh", "torch.tanh", "0.5 * real_N(*a, **k)"),
    _replaced("relu", "torch.relu", "real_N(*a, **k) - real_N(*a, **k).mean(0)"),
    _replaced("linear", "F.linear", "0.5 * real_N(*a, **k)"),
    _replaced("dropout", "F.dropout", "a[0]"),
    _replaced("the forward of linear layers", "nn.Linear.forward", "0.5 * real_N(*a, **k)"),
    _replaced("the mean of tensors", "torch.Tensor.mean", "0.5 * real_N(*a, **k)"),
)

LOSSES = (
    Feature("a second backward", between="(0.5 * loss).backward(retain_graph=True)"),
    Feature(
        "a loss of half of the outputs",
        between="loss = loss + 0.1 * out[: (len(out) + 1) // 2].pow(2).mean()",
        needs="out",
    ),
    Feature("one output only", between="loss = loss + 0.1 * out[..., 0].pow(2).mean()", needs="out"),
    Feature(
        "a backward of the outputs first",
        between="(0.1 * out).pow(2).sum().backward(retain_graph=True)",
        needs="out",
    ),
    Feature(
        "the sum of outputs in every second step",
        between="if step % 2:\n    loss = 0.01 * out.sum()",
        needs="out",
    ),
    Feature(
        "gradients of the outputs",
        between="slope, = torch.autograd.grad(loss, out, retain_graph=True, allow_unused=True)\n"
        "print('none' if slope is None else f'{slope.norm().item():.10f}')",
        needs="out",
    ),
    Feature(
        "a penalty on gradients",
        between="slopes = torch.autograd.grad(loss, list(model.parameters())[-1:], create_graph=True)\n"
        "loss = loss + 0.1 * slopes[0].pow(2).sum()",
        weight=0.4,
    ),
    Feature(
        "outputs kept",
        first="outputs_N = []",
        between="outputs_N.append(out.detach())",
        after="out.detach().mul_(2)",
        last="print(f'{sum(out.sum().item() for out in outputs_N):.10f}')",
        needs="out",
    ),
    Feature(
        "last outputs in the loss",
        first="outputs_N = [torch.zeros(())]",
        between="loss = loss + 0.1 * (out - outputs_N[-1]).pow(2).mean()\n"
        "outputs_N.append(out.detach().mean())",
        needs="out",
    ),
    Feature("outputs whose mean is zero", result="out = out - out.mean(0)", weight=0.5),
    Feature("a limited loss", between="loss = loss.clamp(max=2)", weight=0.5),
)

CHAINS = (
    Feature(
        "a layer behind the model",
        first="tail_N = nn.Linear(K, K)\noptimizer.add_param_group({'params': tail_N.parameters()})",
        result="out = out + tail_N(out)",
        needs="out",
    ),
    Feature(
        "batch norm behind the model",
        first="tail_N = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(K, track_running_stats=False))",
        result="out = out + 0.1 * tail_N(out.reshape(-1, K)).view_as(out) if len(out) > 2 else out",
    ),
    Feature(
        "a layer before the model",
        first="front_N = nn.Linear(X[0].size(-1), X[0].size(-1))\n"
        "optimizer.add_param_group({'params': front_N.parameters()})",
        before="x = front_N(x)",
        needs="x",
    ),
    Feature(
        "a part called by the loop",
        "self.side_N = nn.Linear(D, D)",
        "h = h + self.side_N(h)",
        between="loss = loss + 0.1 * model.side_N(torch.ones(3, D)).pow(2).mean()",
    ),
    Feature(
        "a part called with rows of the batch",
        "self.side_N = nn.Linear(D, D)",
        "h = h + self.side_N(h)",
        between="loss = loss + 0.1 * model.side_N(torch.ones(len(y), D)).pow(2).mean()",
    ),
    Feature("bfloat16 by autocast", context="torch.autocast('cpu', dtype=torch.bfloat16)", weight=0.5),
    Feature("detected anomalies", context="torch.autograd.set_detect_anomaly(step % 2 == 1)", weight=0.3),
    Feature(
        "saved tensors packed",
        context="torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t)",
        weight=0.3,
    ),
    Feature("a forked generator", context="torch.random.fork_rng(devices=[])", weight=0.5),
)

FAMILIES = STATES, WEIGHTS, HOOKS, FUNCTIONS, LOSSES, CHAINS
