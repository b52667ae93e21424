"""Composes switches: what a model asks, when the loop turns it on, and what the model does then."""

from dataclasses import replace
from random import Random
from textwrap import indent

from support.random_scripts.blocks import BLOCKS
from support.random_scripts.features import FAMILIES, Feature
from support.random_scripts.parts import Part, chance, choose, lines_of

TIMES = (
    "epoch == 1",
    "epoch + step == 2",
    "step % 2 == 1",
    "epoch > 0 and step > 0",
    "step > 1",
    "epoch == 0",
)

DEEDS = (
    Part("centers", "", "h = h - 0.5 * h.mean(ROWS, keepdim=True)", weight=3),
    Part("divides by the norm", "", "h = h / (1 + h.norm())"),
    Part("mixes samples", "", "h = 0.9 * h + 0.1 * h.flip(ROWS)", weight=2),
    Part("halves", "", "h = 0.5 * h", weight=4),
    Part("draws", "", "h = h + 0.1 * torch.randn_like(h)", weight=2),
    Part("has a layer", "self.deed_N = nn.Linear(D, D)", "h = h + self.deed_N(h)", weight=2),
    Part("divides by the number", "", "h = h * (4 / h.size(ROWS))"),
    Part("writes in place", "", "h = h.clone()\nh[..., 1:].mul_(0.5)"),
    Part("cuts the graph", "", "h = 0.5 * h + 0.5 * h.detach()"),
    Part(
        "keeps a mean",
        "self.deed_N = torch.zeros(D)",
        "h = h - 0.1 * self.deed_N\n"
        "if torch.is_grad_enabled():\n    self.deed_N = h.detach().flatten(0, -2).mean(0)",
    ),
    Part(
        "counts in a buffer",
        'self.register_buffer("deed_N", torch.zeros(()))',
        "self.deed_N += 1\nh = h + 0.1 * self.deed_N",
    ),
)
"""The work of a model where a switch is on; some compare samples."""

_COUNTED = ("{} % 5 == 4", "{} > 0.7 * 8", "{} == 6", "3 <= {} < 7", "int({} ** 0.5) == 2")


def _switch(name, test, turn="", init="", *, top="", last="", weight=1.0, first="", given=""):
    """Return a feature whose model does `DEED` where `test` is true; `WHEN` is true when the loop says so."""
    forward = f"if {test}:\n    DEED"
    return Feature(name, init, forward, weight, top=top, last=last, before=turn, first=first, given=given)


def _kept(name, off, on, test, weight=0.5):
    """Return a switch in an attribute that is one of two values."""
    return _switch(name, test, f"model.on_N = {on} if WHEN else {off}", f"self.on_N = {off}", weight=weight)


def _counting(name, count, init="", top="", weight=0.5):
    """Return switches on a number that each call changes by the line `count`, and has as its last word."""
    feature = _switch(f"a switch by {name}", "COUNTED", init=init, top=top, weight=weight)
    forward = f"{count}\n{feature.forward}".replace("COUNTED", "COUNTED " + count.split(" += ")[0])
    return replace(feature, forward=forward)


def _given(name, value, test):
    return _switch(f"a switch in an argument, {name}", test, given=value)


SWITCHES = (
    _kept("a switch in an attribute", "False", "True", "self.on_N", weight=1),
    _kept("a switch in a number", "0.0", "1e-3", "self.on_N > 0"),
    _kept("a switch in bytes", 'b"no"', 'b"yes"', 'self.on_N == b"yes"'),
    _kept("a switch in a complex number", "0j", "1j", "self.on_N.imag > 0"),
    _kept("a switch in a NumPy value", "np.bool_(False)", "np.bool_(True)", "self.on_N"),
    _kept("a switch in a class", "int", "float", "self.on_N is float"),
    _kept("a switch in a function", "torch.sin", "torch.cos", "self.on_N is torch.cos"),
    _kept("a switch in a partial", "functools.partial(bool, 0)", "functools.partial(bool, 1)", "self.on_N()"),
    _kept("a switch in a lambda", "(lambda: 0)", "(lambda: 1)", "self.on_N()"),
    _kept("a switch in a type", "True", "1", "type(self.on_N) is int"),
    _kept("a switch in a range", "range(0)", "range(3)", "len(self.on_N)"),
    _kept(
        "a switch in a dtype",
        "torch.float32",
        "torch.float64",
        "self.on_N.is_floating_point and self.on_N.itemsize > 4",
    ),
    _kept("a switch in a slice", "slice(0, 1)", "slice(0, 2)", "self.on_N.stop == 2"),
    _kept("a switch in a frozen set", "frozenset()", "frozenset([1])", "1 in self.on_N"),
    _kept("a switch in a tensor", "torch.zeros(3)", "torch.ones(3)", "self.on_N.sum() > 1"),
    _kept(
        "a switch in a nested value",
        '{"a": [{"b": (0, 0)}]}',
        '{"a": [{"b": (0, 1)}]}',
        'self.on_N["a"][0]["b"][1]',
    ),
    _switch("a switch in a long list", "self.on_N[69]", "model.on_N[69] = int(WHEN)", "self.on_N = [0] * 70"),
    _switch("a switch in an array", "self.on_N[17] > 0", "model.on_N[17] = WHEN", "self.on_N = np.zeros(20)"),
    _switch(
        "a switch in a buffer",
        "self.on_N > 0",
        "model.on_N.fill_(WHEN)",
        'self.register_buffer("on_N", torch.zeros(()))',
    ),
    _switch(
        "a switch in a set",
        "self.on_N",
        "model.on_N.add(1) if WHEN else model.on_N.clear()",
        "self.on_N = set()",
    ),
    _switch("a switch in a class's attribute", "self.on_N", "Net.on_N = WHEN", first="Net.on_N = False"),
    _switch("a switch that appears", 'getattr(self, "on_N", False)', "if WHEN:\n    model.on_N = True"),
    _switch("a switch in a global", "ON_N", "ON_N = WHEN", top="ON_N = False"),
    _switch("a switch in a global dict", 'ON_N["on"]', 'ON_N["on"] = WHEN', top='ON_N = {"on": False}'),
    _switch(
        "a switch in slots",
        "self.on_N.on",
        "model.on_N.on = WHEN",
        "self.on_N = Slots_N()\nself.on_N.on = False",
        top='class Slots_N:\n    __slots__ = ("on",)\n\n',
    ),
    _switch(
        "a switch in a default",
        "on_N()",
        "on_N.__defaults__ = (WHEN,)",
        top="def on_N(on=False):\n    return on\n\n",
    ),
    _switch(
        "a switch in a function's attribute",
        "on_N.on",
        "on_N.on = WHEN",
        top="def on_N():\n    pass\n\n\non_N.on = False\n\n",
    ),
    _switch(
        "a switch in the environment",
        'os.environ.get("ON_N") == "1"',
        'os.environ["ON_N"] = str(int(WHEN))',
        last='del os.environ["ON_N"]',
    ),
    _switch(
        "a switch in a part's mode",
        "not self.on_N.training",
        "model.on_N.train(not WHEN)",
        "self.on_N = nn.Identity()",
    ),
    _switch(
        "a switch in a frozen weight",
        "self.on_N.requires_grad",
        "model.on_N.requires_grad_(WHEN)",
        "self.on_N = nn.Parameter(torch.zeros(1), requires_grad=False)",
    ),
    _switch(
        "a switch in a level of logging",
        "log_N.isEnabledFor(10)",
        "log_N.setLevel(10 if WHEN else 30)",
        top='log_N = logging.getLogger("log_N")',
    ),
    _switch(
        "a switch in a setting",
        "torch.are_deterministic_algorithms_enabled()",
        "torch.use_deterministic_algorithms(WHEN, warn_only=True)",
        last="torch.use_deterministic_algorithms(False)",
    ),
    _switch(
        "a switch in the detection of anomalies",
        "torch.is_anomaly_enabled()",
        "torch.autograd.set_detect_anomaly(WHEN)",
        last="torch.autograd.set_detect_anomaly(False)",
        weight=0.4,
    ),
    _given("a flag", "WHEN", "given_N"),
    _given("a type", "1 if WHEN else True", "type(given_N) is int"),
    _given("a list or none", "[] if WHEN else None", "given_N is not None"),
    _given("a function", "torch.softmax if WHEN else torch.log_softmax", "given_N is torch.softmax"),
    _given("a tensor", "torch.tensor(float(WHEN))", "given_N is not None and given_N > 0"),
    _given("a nested text", '{"mode": ["on" if WHEN else "off"]}', 'given_N and given_N["mode"][0] == "on"'),
    _given("a step", "4 * epoch + step", "COUNTED (given_N or 0)"),
    _given("a share of the steps", "(4 * epoch + step) / 8", "(given_N or 0) > 0.3 * 2"),
    _counting("the calls of a model", "self.count_N += 1", "self.count_N = 0"),
    _counting("the calls in a list", "self.count_N[0] += 1", "self.count_N = [0]"),
    _counting(
        "the calls in a buffer", "self.count_N += 1", 'self.register_buffer("count_N", torch.zeros(()))'
    ),
    _counting("the calls in a global dict", 'COUNT_N["calls"] += 1', top='COUNT_N = {"calls": 0}'),
    _counting("the calls of a class", "Count_N.calls += 1", top="class Count_N:\n    calls = 0\n\n"),
    _switch("a rare draw of Python's", "self.training and random.random() < 0.15"),
    _switch("a rare draw of NumPy's", "self.training and np.random.rand() < 0.15"),
    _switch("a rare draw of torch's", "self.training and torch.rand(()).item() < 0.15"),
    _switch("a switch by positive numbers", "int((h > 0).sum()) > 0.6 * h.numel()"),
    _switch(
        "a switch by the largest place", "(h.detach().argmax(-1) == 0).sum().item() > h[..., 0].numel() // 3"
    ),
    _switch("a switch by any large number", "bool((h.detach().abs() > 0.97).any())"),
    _switch("a switch by the largest number", "h.max().item() * 2 > 1.9"),
    _switch("a switch by a list", "max(h.detach().flatten(0, -2).argmax(-1).tolist()) == D - 1"),
    _switch("a switch by rows that are left", "len(h[h[..., 0] > 0.6]) == 0"),
)


def make_features(rng: Random, *, per_step, has_loss, kind):
    """Return up to three features, numbered by letters, for a model of this kind of data."""
    count = rng.choices((0, 1, 2, 3), (2, 2, 4, 3))[0]
    found = [
        _turned(rng, choose(rng, SWITCHES))
        if chance(rng, 0.4)
        else choose(rng, rng.choice((*FAMILIES, BLOCKS)))
        for _ in range(count)
    ]
    possible = [
        one for one in found if not (has_loss and one.result) and not (kind == "tokens" and one.needs == "x")
    ]
    rows = "BATCH" if per_step else "0"
    return [feature.at(place, rows=rows) for place, feature in zip("abc", possible, strict=False)]


def _turned(rng, switch):
    """Return a switch with a deed, and the times at which it is on."""
    deed, when, counted = choose(rng, DEEDS), rng.choice(TIMES), rng.choice(_COUNTED)
    forward = switch.forward.replace("    DEED", indent(deed.forward, "    "))
    if "COUNTED" in forward:
        test = forward[forward.index("COUNTED ") : forward.index(":\n", forward.index("COUNTED "))]
        forward = forward.replace(test, counted.format(test.removeprefix("COUNTED ")))
    return replace(
        switch,
        name=f"{switch.name} {deed.name}",
        init=lines_of(switch.init, deed.init),
        forward=forward,
        before=switch.before.replace("WHEN", f"({when})"),
        given=switch.given.replace("WHEN", f"({when})"),
    )
