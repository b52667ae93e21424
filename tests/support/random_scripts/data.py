"""Generates the data of a script: the fields of a batch, its form, and its loader."""

from dataclasses import dataclass
from random import Random

from support.random_scripts.parts import chance, lines_of

SEQUENCES = ("sequences", "tokens")


@dataclass(frozen=True)
class Layout:
    """The dimensions of samples and of time steps."""

    batch: int
    time: int

    def applied(self, text):
        """Return source lines for this layout."""
        first = str(self.batch == 0)
        return (
            text.replace("BATCH_FIRST", first)
            .replace("BATCH", str(self.batch))
            .replace("TIME", str(self.time))
        )


@dataclass(frozen=True)
class Data:
    """The training and evaluation data of a script.

    Attributes:
        kind: vectors, images, sequences of vectors, or tokens.
        target: the kind of targets; see `LOSSES`.
        fields: the names in a batch, in order.
        form: the form of a batch: tuple, dict or namedtuple.
        layout: the layout of sequences.
        size: the number of samples in a batch.
        count: the number of training samples.
        tested: the number of evaluation samples.
        shuffled: whether the samples are shuffled in each epoch.
        loader: the loader of the batches; see `_LOADERS`.
        definition: the source lines that create the data.
    """

    kind: str
    target: str
    fields: tuple[str, ...]
    form: str
    layout: Layout
    size: int
    count: int
    tested: int
    shuffled: bool
    loader: str
    definition: str

    @property
    def smallest(self):
        """The number of samples in the smallest training batch."""
        return self.count % self.size or self.size

    @property
    def name(self):
        """The description of the data."""
        first = ", time first" if self.layout.time == 0 else ""
        return f"{self.kind} in a {self.form}{first}"

    def unpacked(self, batch="batch"):
        """Return the line that assigns the names in a batch."""
        names = ", ".join(self.fields)
        if self.form == "tuple":
            return f"{names} = {batch}"
        if self.form == "dict":
            return f"{names} = " + ", ".join(f'{batch}["{name}"]' for name in self.fields)
        return f"{names} = " + ", ".join(f"{batch}.{name}" for name in self.fields)

    def loop(self):
        """Return the line of the loop over the batches of an epoch."""
        return f"for batch in {_LOADERS[self.loader][1]}:"


_LOADERS = {
    "slices": ("", "sliced(N, B, SHUFFLED)"),
    "sizes that change": ("SIZES = ALL_SIZES", "sliced(N, SIZES[epoch], SHUFFLED)"),
    "loader": (
        "loader = DataLoader(range(N), batch_size=B, shuffle=SHUFFLED, collate_fn=make_batch)",
        "loader",
    ),
    "tensors": ("loader = DataLoader(TensorDataset(DATA), batch_size=B, shuffle=SHUFFLED)", "loader"),
    "own generator": (
        "own = torch.Generator().manual_seed(5)\n\
loader = DataLoader(range(N), batch_size=B, shuffle=SHUFFLED, collate_fn=make_batch, generator=own)",
        "loader",
    ),
}

_INPUTS = {
    "vectors": "X = torch.randn(N + TESTED, 5)",
    "images": "X = torch.randn(N + TESTED, 2, 6, 6)",
    "sequences": "X = [torch.randn(length, 3) for length in LENGTHS]",
    "tokens": "X = [torch.randint(1, V, (length,)) for length in LENGTHS]",
}

_TARGETS = {
    "class": "Y = torch.randint(0, K, (N + TESTED,))",
    "values": "Y = torch.randn(N + TESTED, K)",
    "binary": "Y = torch.randint(0, 2, (N + TESTED, K)).double()",
    "tags": "Y = [torch.randint(0, K, (len(one),)) for one in X]",
    "next": "Y = [torch.cat([one[1:], torch.zeros(1, dtype=torch.long)]) for one in X]",
}

_SLICED = """
def sliced(count, size, shuffled=False, first=0):
    order = torch.randperm(count) if shuffled else torch.arange(count)
    for at in range(0, count, size):
        yield make_batch(first + order[at:at + size])
"""


def make_data(rng: Random, *, needs, ignores, kind, target):
    """Return data for a loss that reads the field `needs` beside outputs and targets."""
    is_sequence = kind in SEQUENCES
    size = rng.choice((4, 5, 6, 6, 7, 8))
    batches = rng.choice((3, 3, 4))
    rest = rng.choice([0, 0, *range(3, size), *([1, 2] if chance(rng, 0.2) else [])])
    count = size * (batches - 1) + (rest or size)
    tested = rng.choice((5, 8, 9, 13))
    layout = Layout(1, 0) if is_sequence and chance(rng, 0.35) else Layout(0, 1)
    length = rng.choice(("lengths", "lengths", "mask")) if is_sequence else ""
    fields = tuple(name for name in ("x", length, "y", needs) if name)
    loader = rng.choice(("slices", "loader", "own generator", "tensors", "sizes that change"))
    form = rng.choice(("tuple", "tuple", "dict", "namedtuple"))
    if loader == "tensors":
        loader, form = ("loader", form) if is_sequence else (loader, "tuple")
    is_late = ignores and chance(rng, 0.4)
    shuffled = not is_late and needs != "m" and chance(rng, 0.6)
    made = lines_of(
        f"N, TESTED, B, V, SHUFFLED = {count}, {tested}, {size}, 11, {shuffled}",
        _lengths(rng, size, tested) if is_sequence else "",
        _INPUTS[kind],
        _TARGETS[target],
        _late(target) if is_late else "",
        "M = (torch.rand(N + TESTED) < 0.6).double()\nM[:B] = M[:N:3] = M[N - 1::2] = 1"
        if needs == "m"
        else "",
        "W = 0.5 + torch.rand(N + TESTED)" if needs == "w" else "",
        'Batch = namedtuple("Batch", "' + " ".join(fields) + '")' if form == "namedtuple" else "",
        _make_batch(kind, target, fields, form, layout),
        _SLICED,
        _LOADERS[loader][0],
    )
    smallest = min(3, rest or size)
    sizes = [one for one in range(3, 2 * size + 1) if (count % one or one) >= smallest]
    made = made.replace("ALL_SIZES", str([size, *rng.sample(sizes, min(2, len(sizes))), size, size][:3]))
    made = made.replace("DATA", ", ".join(f"{name.upper()}[:N]" for name in fields))
    return Data(
        kind=kind,
        target=target,
        fields=fields,
        form=form,
        layout=layout,
        size=size,
        count=count,
        tested=tested,
        shuffled=shuffled,
        loader=loader,
        definition=made,
    )


def _lengths(rng, size, tested):
    """Return the line that draws sequence lengths, some equal to the size of a batch or of a slice."""
    fixed = rng.choice((size, size // 2, -(-size // 2), -(-size // 3), 5))
    return rng.choice(
        (
            "LENGTHS = torch.randint(2, 8, (N + TESTED,)).tolist()",
            "LENGTHS = torch.randint(2, 8, (N + TESTED,)).tolist()",
            f"LENGTHS = [{max(2, fixed)}] * (N + TESTED)",
            f"LENGTHS = torch.randint(2, {max(2, fixed) + 1}, (N + TESTED,)).tolist()",
            f"LENGTHS = [{max(3, fixed)}] * B + torch.randint(2, 8, (N + TESTED - B,)).tolist()",
        )
    )


def _late(target):
    """Return the lines that set labels to be ignored: none in the first batch, and not all of any batch."""
    if target in ("tags", "next"):
        return "for one in Y[B:]:\n    one[1:][torch.rand(len(one) - 1) < 0.4] = -100"
    return lines_of(
        "ignored = torch.rand(N + TESTED) < 0.4",
        "ignored[:B] = ignored[:N:3] = ignored[N - 1::2] = False",
        "Y[ignored] = -100",
    )


def _make_batch(kind, target, fields, form, layout):
    first = layout.batch == 0
    is_sequence = kind in SEQUENCES
    pad = f"pad_sequence([{{}}[i] for i in indices.tolist()], batch_first={first}"
    inputs = pad.format("X") + ")" if is_sequence else "X[indices]"
    targets = pad.format("Y") + ", padding_value=-100)" if target in ("tags", "next") else "Y[indices]"
    values = {
        "x": inputs,
        "y": targets,
        "lengths": "lengths",
        "mask": "torch.arange(int(lengths.max()))[None] < lengths[:, None]",
        "m": "M[indices]",
        "w": "W[indices]",
    }
    made = [f"    {name} = {values[name]}" for name in fields if name != "lengths"]
    names = ", ".join(fields)
    returned = {
        "tuple": names,
        "dict": "{" + ", ".join(f'"{name}": {name}' for name in fields) + "}",
        "namedtuple": f"Batch({names})",
    }[form]
    return lines_of(
        "\n\ndef make_batch(indices):",
        "    indices = torch.as_tensor(indices)",
        "    lengths = torch.tensor([LENGTHS[i] for i in indices.tolist()])" if is_sequence else "",
        *made,
        f"    return {returned}",
    )
