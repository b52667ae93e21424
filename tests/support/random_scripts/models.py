"""Generates the model of a script: a stem, layers, a head, and the arguments and results of `forward`."""

from dataclasses import dataclass
from random import Random
from textwrap import indent

from support.random_scripts.data import SEQUENCES, Data
from support.random_scripts.layers import IMAGE_PARTS, POOLS, SEQUENCE_PARTS, VECTOR_PARTS, WRAPPERS
from support.random_scripts.losses import EXTRAS, source
from support.random_scripts.parts import Part, chance, choose, lines_of

PER_STEP = ("tags", "next")


@dataclass(frozen=True)
class Model:
    """The source of a model, and the form of its calls.

    Attributes:
        name: the names of its parts.
        definition: the source of its class.
        inputs: the names in a batch that it takes.
        given: the names of further arguments.
        style: the arguments of a call: by position, by name, the batch itself, or its keys.
        returned: the names that `forward` returns.
        form: the form of the result: alone, tuple, dict or dataclass.
        extra: the place of an additional loss term: returned, an attribute, in the loss; empty for none.
        has_loss: whether the model computes the loss.
        can_leave_out: whether it can be called without targets.
    """

    name: str
    definition: str
    inputs: tuple[str, ...]
    given: tuple[str, ...]
    style: str
    returned: tuple[str, ...]
    form: str
    extra: str
    has_loss: bool
    can_leave_out: bool

    def called(self, data: Data, *, model="model", with_loss=True):
        """Return the lines that call the model for a batch, and assign its results."""
        names = (
            self.inputs if with_loss else [name for name in self.inputs if name in ("x", "lengths", "mask")]
        )
        arguments = {
            "position": ", ".join(names),
            "name": ", ".join(f"{name}={name}" if name != "x" else name for name in names),
            "batch": "batch",
            "keys": "**batch",
        }[self.style]
        call = f"{model}({', '.join((arguments, *(f'{name}={name}' for name in self.given)))})"
        if self.form == "alone" or (self.has_loss and not with_loss):
            return f"{self.returned[0] if with_loss else 'out'} = {call}"
        if self.form == "tuple":
            return f"{', '.join(self.returned)} = {call}"
        read = '["{0}"]' if self.form == "dict" else ".{0}"
        return lines_of(
            f"result = {call}", *(f"{name} = result{read.format(name)}" for name in self.returned)
        )


def make_model(rng: Random, data: Data, loss, features, *, inside):
    """Return a model with features for this data; it computes the loss itself if `inside` is set."""
    stem, middle, vectors = _stem(rng, data), [], []
    is_sequence, per_step = data.kind in SEQUENCES, data.target in PER_STEP
    if is_sequence:
        middle = _chosen(rng, SEQUENCE_PARTS, rng.choice((1, 1, 2, 3)), data)
        if not per_step:
            middle.append(choose(rng, POOLS))
    elif data.kind == "images":
        middle = [*_chosen(rng, IMAGE_PARTS, rng.choice((1, 2, 3)), data, wrapped=False), _after_images(rng)]
    if not per_step:
        vectors = _chosen(rng, VECTOR_PARTS, rng.choice((0, 1, 2) if middle else (1, 2, 2, 3)), data)
    head = _head(rng, data)
    first = [part.at(index) for index, part in enumerate([stem, *middle, *vectors])]
    parts = [*first, *features, head]
    extra = choose(rng, EXTRAS) if chance(rng, 0.25) else None
    where = rng.choice(("returned", "attribute", *(("in the loss",) if inside else ()))) if extra else ""
    style = rng.choice(("position", "position", "name", "batch", *(("keys",) if data.form == "dict" else ())))
    returned = _returned(rng, inside=inside, where=where)
    form = "alone" if len(returned) == 1 else rng.choice(("tuple", "dict", "dataclass"))
    inputs = tuple(name for name in data.fields if inside or name in ("x", "lengths", "mask"))
    can_leave_out = inside and style in ("position", "name")
    given = tuple(f"given_{feature.place}" for feature in features if feature.given)
    ending = lines_of(
        f"{'self.aux' if where == 'attribute' else 'aux'} = {extra.expression}" if extra else "",
        "if y is None:\n    return out" if can_leave_out else "",
        source(loss, data.layout) if inside else "",
        "loss = loss + 0.1 * aux.mean()" if where == "in the loss" else "",
        f"return {_result(returned, form)}",
    )
    forward = lines_of(
        data.unpacked() if style == "batch" else "",
        "lengths = mask.sum(1)" if "mask" in data.fields else "",
        *(part.forward for part in parts),
        ending,
    )
    names = ", ".join(part.name for part in [*first, head])
    added = f", {extra.name} {where}" if extra else ""
    return Model(
        name=f"{names}{added}",
        definition=data.layout.applied(
            lines_of(
                *(f"\n\n{feature.top}" for feature in features if feature.top),
                _class(parts, forward, inputs, returned, form, style, given),
            )
        ),
        inputs=inputs,
        given=given,
        style=style,
        returned=returned,
        form=form,
        extra=where,
        has_loss=inside,
        can_leave_out=can_leave_out,
    )


def _chosen(rng, parts, count, data, *, wrapped=True):
    """Return wrapped parts that can train on the smallest batch of the data."""
    possible = [part for part in parts if part.smallest <= data.smallest]
    return [
        choose(rng, WRAPPERS).around(choose(rng, possible)) if wrapped else choose(rng, possible)
        for _ in range(count)
    ]


def _stem(rng, data):
    if data.kind == "tokens":
        padding = rng.choice(("", ", padding_idx=0"))
        return Part("embedding", f"self.embed = nn.Embedding(V, D{padding})", "h = self.embed(x)")
    if data.kind == "images":
        return Part(
            "convolution", "self.stem = nn.Conv2d(2, 4, 3, padding=1)", "h = torch.relu(self.stem(x))"
        )
    size = {"vectors": 5, "sequences": 3}[data.kind]
    return Part("linear", f"self.stem = nn.Linear({size}, D)", "h = torch.tanh(self.stem(x))")


def _after_images(rng):
    return rng.choice(
        (
            Part(
                "mean over places", "self.join = nn.Linear(4, D)", "h = torch.tanh(self.join(h.mean((2, 3))))"
            ),
            Part(
                "flattened",
                "self.join = nn.Linear(36, D)",
                "h = torch.tanh(self.join(F.avg_pool2d(h, 2).flatten(1)))",
            ),
        )
    )


def _head(rng, data):
    choices = [
        Part("linear head", "self.head = nn.Linear(D, K)", "out = self.head(h)", weight=4),
        Part(
            "head of zeros",
            "self.head = nn.Linear(D, K)\nnn.init.zeros_(self.head.weight)\nnn.init.zeros_(self.head.bias)",
            "out = self.head(h)",
        ),
        Part(
            "head of two layers, dropout between",
            "self.head = nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Dropout(P), nn.Linear(8, K))",
            "out = self.head(h)",
        ),
    ]
    if data.target == "next":
        choices.append(Part("tied head", "", "out = h @ self.embed.weight.t()", weight=4))
        choices.append(
            Part(
                "tied linear head",
                "self.head = nn.Linear(D, K)\nself.head.weight = self.embed.weight",
                "out = self.head(h)",
                weight=4,
            )
        )
    return choose(rng, choices)


def _returned(rng, *, inside, where):
    first = ("loss",) if inside and chance(rng, 0.3) else ("out", "loss") if inside else ("out",)
    more = ("aux",) if where == "returned" else ("h",) if chance(rng, 0.15) and first != ("loss",) else ()
    return (*first, *more)


def _result(returned, form):
    if form == "alone":
        return returned[0]
    if form == "tuple":
        return ", ".join(returned)
    if form == "dict":
        return "{" + ", ".join(f'"{name}": {name}' for name in returned) + "}"
    return f"Result({', '.join(returned)})"


def _class(parts, forward, inputs, returned, form, style, given):
    fields = "\n".join(f"    {name}: torch.Tensor" for name in returned)
    needed = [name for name in inputs if name != "y"]
    more = [f"{name}=None" for name in given]
    first = needed if "y" not in inputs else needed[: needed.index("x") + 1]
    arguments = {
        "batch": ["batch", *more],
        "keys": [*inputs, *more, "**others"],
    }.get(style, [*first, *_optional(inputs), *more])
    init = lines_of(*(part.init for part in parts))
    state = lines_of(
        "self.epoch = 0" if "self.epoch" in forward else "",
        "self.factor = 0.0" if "self.factor" in forward else "",
        "self.calls = 0" if "self.calls" in forward else "",
        'self.register_buffer("steps", torch.zeros(()))' if "self.steps" in forward else "",
    )
    counting = lines_of(
        "self.calls += 1" if "self.calls" in forward else "",
        "self.steps += 1" if "self.steps" in forward else "",
    )
    return lines_of(
        f"\n\n@dataclass\nclass Result:\n{fields}" if form == "dataclass" else "",
        "\n\nclass Net(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        indent(lines_of(init, state), "        "),
        f"\n    def forward(self, {', '.join(arguments)}):",
        indent(lines_of(counting, forward), "        "),
        "",
    )


def _optional(inputs):
    """Return the arguments after `x` of a model that takes optional targets."""
    return [f"{name}=None" for name in inputs if name != "x"] if "y" in inputs else []
