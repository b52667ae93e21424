"""Lists blocks: modules of the script's own within a model, and the ways in which its forward calls them.

A model that is not split as a whole has its blocks split, whatever they are given: rows in another order or
number, other tensors than rows, lists, numbers; and they may keep, return or compute anything.
"""

from textwrap import dedent, indent

from support.random_scripts.features import Feature


def _block(name, forward, call="h = h + self.block_N(h)", *, arguments="h", init="", weight=1.0, more=""):
    """Return a feature with a class `Block_N`, which has one linear layer and this forward.

    Args:
        name: the feature's name.
        forward: lines of the block, which has a linear layer `self.linear` of D features.
        call: lines of the model, which call `self.block_N`.
        arguments: those of the block's forward, after `self`.
        init: further lines of the block's `__init__`.
        weight: the relative frequency.
        more: further lines of the model's `__init__`.
    """
    top = (
        "class Block_N(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.linear = nn.Linear(D, D)\n"
        f"{indent(dedent(init).strip(), '        ')}\n\n"
        f"    def forward(self, {arguments}):\n"
        f"{indent(dedent(forward).strip(), '        ')}\n"
    )
    made = "self.block_N = Block_N()\n" + dedent(more).strip()
    return Feature(f"a block {name}", made, call, weight, top=top)


_TANH = "return torch.tanh(self.linear(h))"

BLOCKS = (
    _block("called twice", _TANH, "h = h + self.block_N(h)\nh = h + self.block_N(0.5 * h)"),
    _block(
        "that calls itself",
        "return h if not depth else self(torch.tanh(self.linear(h)), depth - 1)",
        "h = h + self.block_N(h, 2)",
        arguments="h, depth",
    ),
    _block(
        "of pairs of rows",
        _TANH,
        """
        rows_N = h.movedim(ROWS, 0)
        pairs_N = (rows_N[:, None] - rows_N[None]).flatten(0, 1)
        h = h + self.block_N(pairs_N).unflatten(0, (len(rows_N), len(rows_N))).mean(1).movedim(0, ROWS)
        """,
    ),
    _block(
        "of each row repeated",
        _TANH,
        """
        many_N = h.movedim(ROWS, 0).repeat_interleave(3, 0)
        h = h + self.block_N(many_N).unflatten(0, (-1, 3)).mean(1).movedim(0, ROWS)
        """,
    ),
    _block(
        "of the rows twice",
        _TANH,
        """
        many_N = torch.cat([h, -h], ROWS)
        one_N, two_N = self.block_N(many_N).chunk(2, ROWS)
        h = h + one_N * two_N
        """,
    ),
    _block(
        "of sorted rows",
        "return h + 0.1 * torch.tanh(self.linear(h))",
        """
        order_N = h.detach().movedim(ROWS, 0).flatten(1).sum(1).argsort()
        h = h.index_select(ROWS, order_N)
        h = self.block_N(h).index_select(ROWS, order_N.argsort())
        """,
    ),
    _block(
        "of some rows",
        _TANH,
        """
        some_N = h.detach()[..., 0] > 0
        h = h.clone()
        h[some_N] = self.block_N(h[some_N])
        """,
    ),
    _block(
        "of chunks of rows",
        _TANH,
        "h = h + torch.cat([self.block_N(part) for part in h.split(2, ROWS)], ROWS)",
    ),
    _block("of other dimensions first", _TANH, "h = h + self.block_N(h.transpose(0, -2)).transpose(0, -2)"),
    _block(
        "of flattened rows",
        "return torch.tanh(self.linear(h.view(-1, D)))",
        "h = h + self.block_N(h.flatten()).view_as(h)",
    ),
    _block("of the mean of rows", _TANH, "h = h + self.block_N(h.mean(ROWS, keepdim=True))"),
    _block(
        "of rows and their mean",
        "return torch.tanh(self.linear(h)) * mean",
        "h = h + self.block_N(h, h.mean(ROWS, keepdim=True))",
        arguments="h, mean",
    ),
    _block(
        "of rows and one of them",
        "return torch.tanh(self.linear(h)) * row",
        "h = h + self.block_N(h, h.narrow(ROWS, 0, 1))",
        arguments="h, row",
    ),
    _block(
        "of weights",
        _TANH,
        "h = h + self.block_N(self.memory_N).mean(0)",
        more="self.memory_N = nn.Parameter(torch.randn(8, D))",
    ),
    _block(
        "of rows and weights",
        "return torch.softmax(self.linear(h) @ memory.t(), -1) @ memory",
        "h = h + self.block_N(h, self.memory_N)",
        arguments="h, memory",
        more="self.memory_N = nn.Parameter(torch.randn(4, D))",
    ),
    _block(
        "that makes weights",
        "return torch.tanh(self.linear(h)).reshape(-1, D, 1) * 0.1",
        """
        made_N = self.block_N(h.flatten(0, -2).mean(0, keepdim=True).expand(D, D)).squeeze(-1)
        h = h + F.linear(h, made_N)
        """,
    ),
    _block(
        "of a list",
        "return torch.tanh(self.linear(parts[0] + parts[1]))",
        "h = h + self.block_N([h, 0.5 * h])",
        arguments="parts",
    ),
    _block(
        "of a dict, which it fills",
        """
        state["out"] = torch.tanh(self.linear(state["h"]))
        state["calls"] += 1
        return state
        """,
        'state_N = self.block_N({"h": h, "calls": 0})\nh = h + state_N["out"] * state_N["calls"]',
        arguments="state",
    ),
    _block(
        "of rows, each a number",
        "return torch.tanh(self.linear(h)) * torch.tensor(scales).view(shape)",
        """
        scales_N = [1 + 0.1 * (number % 3) for number in range(h.size(ROWS))]
        shape_N = [1] * ROWS + [-1] + [1] * (h.dim() - ROWS - 1)
        h = h + self.block_N(h, scales_N, shape_N)
        """,
        arguments="h, scales, shape",
    ),
    _block(
        "with the number of rows",
        "return torch.tanh(self.linear(h)) / rows",
        "h = h + self.block_N(h, rows=h.size(ROWS))",
        arguments="h, *, rows",
    ),
    _block(
        "that returns numbers",
        "return torch.tanh(self.linear(h)), h.numel(), h.detach().mean().item()",
        "made_N, number_N, mean_N = self.block_N(h)\nh = h + made_N * (1 + mean_N) + 1 / number_N",
    ),
    _block(
        "that returns a tensor twice",
        "h = torch.tanh(self.linear(h))\nreturn h, [h, h[..., :1]]",
        "made_N, (same_N, view_N) = self.block_N(h)\nh = h + made_N * same_N + view_N",
    ),
    _block(
        "that returns its input",
        "return h, self.linear(h)",
        "same_N, made_N = self.block_N(h)\nh = h + made_N if same_N is h else 0 * h",
    ),
    _block(
        "that returns an object",
        """
        result = argparse.Namespace()
        result.made, result.name = torch.tanh(self.linear(h)), "made"
        return result
        """,
        "h = h + self.block_N(h).made",
    ),
    _block(
        "that keeps its output",
        "self.kept = torch.tanh(self.linear(h))\nreturn self.kept.mean(-1, keepdim=True)",
        "h = h + self.block_N(h)\nh = h + 0.1 * self.block_N.kept",
        init="self.kept = None",
    ),
    _block(
        "that appends to the model's list",
        "out.append(torch.tanh(self.linear(h)))\nreturn out[-1].sum(-1, keepdim=True)",
        "list_N = []\nh = h + self.block_N(h, list_N) + list_N[0]",
        arguments="h, out",
    ),
    _block(
        "that writes into its input",
        "h += 0.1 * torch.tanh(self.linear(h.clone()))\nreturn h.sum(-1, keepdim=True)",
        "h = h.clone()\nh = self.block_N(h) * 0.1 + h",
    ),
    _block(
        "that writes into a view",
        "made = self.linear(h)\nmade[..., :2] *= 0.5\nreturn made[..., 1:]",
        "h = h + F.pad(self.block_N(h), (0, 1))",
    ),
    _block(
        "without a graph", _TANH, "with torch.no_grad():\n    gate_N = self.block_N(h)\nh = h + 0.1 * gate_N"
    ),
    _block("of detached rows", _TANH, "h = h + self.block_N(h.detach())"),
    _block(
        "whose slope is taken",
        _TANH,
        """
        with torch.inference_mode(False), torch.enable_grad():
            input_N = h.clone().detach().requires_grad_()
            slope_N, = torch.autograd.grad(self.block_N(input_N).sum(), input_N, create_graph=self.training)
        h = h + slope_N
        """,
    ),
    _block(
        "that takes its own slope",
        """
        with torch.inference_mode(False), torch.enable_grad():
            h = h.clone().detach().requires_grad_()
            energy = torch.tanh(self.linear(h)).pow(2).sum()
            slope, = torch.autograd.grad(energy, h, create_graph=self.training)
        return slope
        """,
    ),
    _block("within a checkpoint", _TANH, "h = h + checkpoint(self.block_N, h, use_reentrant=False)"),
    _block(
        "within an old checkpoint",
        _TANH,
        """
        if h.requires_grad:
            h = h + checkpoint(self.block_N, h, use_reentrant=True)
        """,
        weight=0.5,
    ),
    _block(
        "with a checkpoint",
        """
        compute = lambda x: torch.tanh(self.linear(F.dropout(x, P, self.training)))
        return checkpoint(compute, h, use_reentrant=False)
        """,
    ),
    _block("by its forward", _TANH, "h = h + self.block_N.forward(h)"),
    _block(
        "with other weights",
        _TANH,
        """
        other_N = {name: 0.5 * p for name, p in self.block_N.named_parameters()}
        h = h + torch.func.functional_call(self.block_N, other_N, (h,))
        """,
    ),
    _block(
        "mapped over rows",
        _TANH,
        "h = h + torch.func.vmap(self.block_N)(h.flatten(0, -2)).view_as(h)",
        weight=0.5,
    ),
    _block(
        "of one draw and of rows",
        "return torch.tanh(self.linear(h)) * (1 + 0.1 * draw)",
        "h = h + self.block_N(h, torch.randn(D))",
        arguments="h, draw",
    ),
    _block(
        "of draws for rows",
        "return torch.tanh(self.linear(h + 0.1 * noise))",
        "h = h + self.block_N(h, torch.randn_like(h))",
        arguments="h, noise",
    ),
    _block(
        "that draws after dropout",
        """
        h = F.dropout(torch.tanh(self.linear(h)), P, self.training)
        return h * torch.rand(h.shape[:-1]).unsqueeze(-1)
        """,
    ),
    _block(
        "along steps",
        "return torch.tanh(self.linear(h) + state)",
        """
        state_N = torch.zeros_like(h)
        for number in range(3):
            state_N = self.block_N(h, state_N)
        h = h + state_N
        """,
        arguments="h, state",
    ),
    _block(
        "until it changes little",
        "return 0.5 * torch.tanh(self.linear(h))",
        """
        state_N = torch.zeros_like(h)
        for number in range(4):
            before_N, state_N = state_N, self.block_N(h + state_N)
            if (state_N - before_N).abs().max() < 0.1:
                break
        h = h + state_N
        """,
    ),
    _block(
        "with a running mean",
        """
        if self.training:
            self.mean.lerp_(h.detach().flatten(0, -2).mean(0), 0.1)
        return torch.tanh(self.linear(h - self.mean))
        """,
        init='self.register_buffer("mean", torch.zeros(D))',
    ),
    _block(
        "with a last output",
        """
        h = torch.tanh(self.linear(h if self.last is None else h + 0.1 * self.last))
        self.last = h.detach().flatten(0, -2).mean(0)
        return h
        """,
        init="self.last = None",
    ),
    _block(
        "with a state for each row",
        """
        if self.state is None or self.state.shape != h.shape or self.state.is_inference():
            self.state = torch.zeros_like(h)
        self.state = (0.5 * self.state + 0.5 * torch.tanh(self.linear(h))).detach()
        return self.linear(self.state)
        """,
        init="self.state = None",
    ),
    _block(
        "with a cache by size",
        """
        size = h.size(ROWS)
        if size not in self.cache:
            self.cache[size] = torch.full((D,), 0.1 * size)
        return torch.tanh(self.linear(h)) * self.cache[size]
        """,
        init="self.cache = {}",
    ),
    _block(
        "with a hook that keeps",
        "return torch.tanh(self.linear(h))",
        "h = h + self.block_N(h) + 0.1 * self.block_N.linear.kept.pop().sum(-1, keepdim=True)",
        more="""
        self.block_N.linear.kept = []
        self.block_N.linear.register_forward_hook(lambda m, a, out: m.kept.append(out))
        """,
    ),
    _block(
        "compiled by script",
        _TANH,
        more="self.block_N = torch.jit.script(nn.Sequential(nn.Linear(D, D), nn.Tanh()))",
        weight=0.3,
    ),
    _block(
        "that ends early",
        """
        if h.detach().abs().mean() < 0.5:
            return h
        return torch.tanh(self.linear(h))
        """,
    ),
    _block(
        "for each number of rows",
        "return torch.tanh(self.linear(h)) if h.size(ROWS) % 2 else h.roll(1, ROWS)",
    ),
    _block(
        "in evaluation mode",
        "return F.dropout(torch.tanh(self.linear(h)), 0.5, self.training)",
        "self.block_N.eval()\nh = h + self.block_N(h)",
    ),
    _block(
        "that skips at random",
        "return torch.tanh(self.linear(h)) if not self.training or torch.rand(()) < 0.7 else None",
        """
        made_N = self.block_N(h)
        h = h if made_N is None else h + made_N
        """,
    ),
)
"""Blocks, each a linear layer of `D` features within a module, and how the model calls them."""
