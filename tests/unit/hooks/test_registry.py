"""Hooks of one attribute are nested, and can be detached in any order."""

import importlib
import itertools
import os
import signal
import sys
import threading
import warnings
from contextlib import nullcontext
from types import ModuleType

import pytest
import torch

from samestep.base.errors import UsageError
from samestep.hooks import registry
from samestep.hooks.declarations import ALL
from samestep.hooks.registry import (
    Hook,
    attach,
    attach_to,
    attached,
    attached_all,
    attached_to,
    instead,
    named,
    once_imported,
    problems,
    put,
    references_replaced,
    search_references,
    wrapping,
)


class Base:
    def inherited(self):
        return "base"


class Library(Base):
    """A class whose attributes the tests replace."""

    def call(self, text):
        """Return the text."""
        return text

    @staticmethod
    def static():
        return "static"

    value = 1


def hook(attribute="call", order=0, **more):
    return Hook("torch", attribute, "a feature", "a reason", order=order, **more)


def around(word):
    return lambda original: lambda self, text: f"{word}({original(self, text)})"


def test_a_later_hook_wraps_the_earlier_one():
    with attached_to(Library, hook(), around("one")), attached_to(Library, hook(), around("two")):
        assert Library().call("x") == "two(one(x))"

    assert Library().call("x") == "x"


def test_a_hook_of_higher_order_wraps_the_others():
    with attached_to(Library, hook(order=1), around("one")), attached_to(Library, hook(), around("two")):
        assert Library().call("x") == "one(two(x))"


@pytest.mark.parametrize("leaving", list(itertools.permutations(range(3))))
def test_hooks_are_detached_in_any_order(leaving):
    original = vars(Library)["call"]
    contexts = [attached_to(Library, hook(), around(str(number))) for number in range(3)]
    for context in contexts:
        context.__enter__()
    left = [0, 1, 2]
    for number in leaving:
        contexts[number].__exit__(None, None, None)
        left.remove(number)
        expected = "x"
        for one in left:
            expected = f"{one}({expected})"
        assert Library().call("x") == expected
    assert vars(Library)["call"] is original


def test_an_error_within_the_block_restores_the_attribute():
    original = vars(Library)["call"]
    with pytest.raises(ZeroDivisionError), attached_to(Library, hook(), around("one")):
        raise ZeroDivisionError

    assert vars(Library)["call"] is original


def test_an_error_of_a_later_hook_restores_the_earlier_ones():
    original = torch.compile
    missing = Hook("torch", "no_such_function", "a feature", "a reason")
    with (
        pytest.raises(UsageError),
        attached_all({hook("compile"): named(lambda one: one), missing: instead(1)}),
    ):
        pass

    assert torch.compile is original


@pytest.mark.parametrize("attribute", ["inherited", "static", "value"])
def test_inherited_static_and_plain_attributes_are_restored(attribute):
    before = dict(vars(Library))
    with attached_to(Library, hook(attribute), instead(staticmethod(lambda: "new"))):
        assert attribute in vars(Library)

    assert dict(vars(Library)) == before


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [classmethod(lambda kind: kind), property(id), staticmethod(id), 7])
def test_a_replacement_of_any_kind_is_detached(value, capfd):
    before = dict(vars(Library))
    with attached_to(Library, hook("static"), instead(value)):
        assert vars(Library)["static"] is value

    assert dict(vars(Library)) == before
    assert capfd.readouterr().err == ""


def test_a_missing_attribute_is_refused_by_its_name():
    with pytest.raises(UsageError, match=r"torch\.no_such_function"):
        attach(hook("no_such_function"), instead(1))


def test_an_optional_attribute_may_be_missing():
    with attached(hook("no_such_function", optional=True), instead(1)):
        assert not hasattr(torch, "no_such_function")


def test_a_missing_module_is_refused():
    with pytest.raises(UsageError, match="cannot be imported"):
        attach(Hook("no_such_library", "call", "a feature", "a reason"), instead(1))


def test_the_replacement_of_another_library_is_kept_and_named():
    def theirs(self, text):
        return f"theirs({ours(self, text)})"

    original = vars(Library)["call"]
    try:
        detach = attach_to(Library, hook(), around("one"))
        ours = Library.call
        Library.call = theirs
        with pytest.warns(RuntimeWarning, match=rf"{__name__} has replaced Library\.call"):
            detach()
        assert Library.call is theirs
    finally:
        Library.call = original


def test_wrapped_functions_keep_their_names():
    with attached_to(Library, hook(), wrapping(lambda original, self, text: original(self, text) * 2)):
        assert Library.call.__doc__ == "Return the text."
        assert Library().call("x") == "xx"


def test_put_returns_the_former_value():
    declared = Hook("torch.nn.utils.parametrize", "_cache_enabled", "a test", "it is restored below")

    before = put(declared, 7)

    assert put(declared, before) == 7


def test_every_declared_hook_fits_the_installed_libraries():
    assert list(problems(ALL)) == []


def test_attributes_that_samestep_has_replaced_are_no_problem():
    attached_now = Hook(
        "torch.distributed.distributed_c10d", "barrier", "a test", "a reason", arguments=("group",)
    )
    put_now = Hook(
        "torch.distributed.distributed_c10d", "broadcast", "a test", "a reason", arguments=("src",)
    )
    before = put(put_now, lambda *_: None)
    try:
        with attached(attached_now, lambda _: lambda *_: None):
            assert list(problems([attached_now, put_now])) == []
    finally:
        put(put_now, before)


def test_declared_hooks_have_a_feature_and_a_reason():
    assert all(one.feature and one.reason for one in ALL)
    assert len({(one.owner, one.attribute, one.feature) for one in ALL}) == len(ALL)


def test_a_hook_that_does_not_fit_is_a_problem():
    wrong = (
        hook("no_such_function"),
        Hook("torch.autograd", "backward", "a feature", "a reason", arguments=("no_such_argument",)),
        Hook("no_such_library", "call", "a feature", "a reason"),
    )

    assert len(list(problems(wrong))) == len(wrong)
    assert list(problems([hook("no_such_function", optional=True)])) == []


def replaced_by_script(_):
    def call(*_):
        Library.call = None
        raise ZeroDivisionError

    return call


def test_a_conflict_is_printed_if_warnings_are_errors(capfd):
    original = vars(Library)["call"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ZeroDivisionError), attached_to(Library, hook(), replaced_by_script):
                Library().call("x")
    finally:
        Library.call = original
    assert "has replaced Library.call while samestep used it" in capfd.readouterr().err


def refused(_):
    raise ZeroDivisionError


@pytest.mark.parametrize("is_first", [False, True])
def test_a_hook_is_not_attached_if_its_replacement_cannot_be_made(is_first):
    original = vars(Library)["call"]
    with nullcontext() if is_first else attached_to(Library, hook(), around("one")):
        with pytest.raises(ZeroDivisionError):
            attach_to(Library, hook(), refused)
        with attached_to(Library, hook(), around("two")):
            assert Library().call("x") == ("two(x)" if is_first else "two(one(x))")

    assert vars(Library)["call"] is original


def test_a_process_forked_while_another_thread_attaches_can_attach():
    begun, ended = threading.Event(), threading.Event()

    def slow(original):
        begun.set()
        ended.wait(0.2)
        return original

    thread = threading.Thread(target=lambda: attach_to(Library, hook(), slow)())
    thread.start()
    assert begun.wait(10)
    child = os.fork()
    if not child:
        signal.alarm(10)  # ends a child that waits for the lock
        with attached_to(Library, hook(), around("one")):
            os._exit(Library().call("x") != "one(x)")
    _, status = os.waitpid(child, 0)
    ended.set()
    thread.join()
    assert status == 0


def old():
    return "old"


def new():
    return "new"


def other():
    return "other"


def twice():
    return "twice"


@pytest.fixture(autouse=True)
def nothing_searched(monkeypatch):
    monkeypatch.setattr(registry, "_functions", {})
    monkeypatch.setattr(registry, "_searched", {})


@pytest.fixture
def library(monkeypatch):
    """Return a function that makes a module with the given names."""

    def make(name, **names):
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return make


@pytest.mark.parametrize("is_searched", [False, True])
def test_a_function_is_replaced_under_every_name_within_the_block(library, is_searched):
    one, two = library("one", f=old, g=other), library("two", f=old, again=old)
    if is_searched:
        search_references([old])
    with references_replaced([(old, new)]):
        assert [one.f, one.g, two.f, two.again] == [new, other, new, new]
    assert [one.f, one.g, two.f, two.again] == [old, other, old, old]


def test_modules_that_were_loaded_or_extended_since_the_search_are_searched_again(library):
    grown = library("grown", f=other)
    search_references([old])
    grown.g = old
    loaded = library("loaded", f=old)
    with references_replaced([(old, new)]):
        assert [grown.g, loaded.f] == [new, new]
    assert [grown.g, loaded.f] == [old, old]


def test_a_search_for_further_functions_keeps_earlier_results(library):
    module = library("module", f=old, g=other)
    search_references([old])
    search_references([other])
    with references_replaced([(old, new), (other, twice)]):
        assert [module.f, module.g] == [new, twice]
    assert [module.f, module.g] == [old, other]


def test_references_that_the_block_adds_are_restored_too(library):
    module = library("module", f=old)
    search_references([old])
    with references_replaced([(old, new)]):
        module.g = new
        loaded = library("loaded", f=new)
    assert [module.f, module.g, loaded.f] == [old, old, old]


def test_replacements_can_be_replaced_again(library):
    module = library("module", f=old)
    search_references([old])
    with references_replaced([(old, new)]):
        with references_replaced([(new, other)]):
            assert module.f is other
        assert module.f is new
    assert module.f is old


def test_functions_that_pathlib_keeps_in_a_class_are_replaced(monkeypatch):
    originals = [lambda: "scanned", lambda: "stated"]

    class Globber:  # as in Python 3.13
        scandir = staticmethod(originals[0])
        lstat = staticmethod(originals[1])

    monkeypatch.setattr(registry.glob, "_StringGlobber", Globber, raising=False)
    with references_replaced([(originals[0], lambda: "replaced")]):
        assert [Globber.scandir(), Globber.lstat()] == ["replaced", "stated"]
    assert Globber.scandir() == "scanned"


def test_a_library_is_imported_past_a_finder_of_the_old_protocol(tmp_path, monkeypatch):
    """Python passes over a finder without `find_spec`, such as those of old vendored packages."""
    (tmp_path / "library_behind.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path])
    imported = []
    with once_imported("library_behind", lambda: imported.append(True)):
        importlib.import_module("library_behind")
    assert imported == [True]
