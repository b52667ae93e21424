"""Functions are replaced wherever a module refers to them, also in modules that changed after the search."""

import sys
from types import ModuleType

import pytest

from samestep.hooks import references
from samestep.hooks.references import references_replaced, search


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
    monkeypatch.setattr(references, "_functions", {})
    monkeypatch.setattr(references, "_searched", {})


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
        search([old])
    with references_replaced([(old, new)]):
        assert [one.f, one.g, two.f, two.again] == [new, other, new, new]
    assert [one.f, one.g, two.f, two.again] == [old, other, old, old]


def test_modules_that_were_loaded_or_extended_since_the_search_are_searched_again(library):
    grown = library("grown", f=other)
    search([old])
    grown.g = old
    loaded = library("loaded", f=old)
    with references_replaced([(old, new)]):
        assert [grown.g, loaded.f] == [new, new]
    assert [grown.g, loaded.f] == [old, old]


def test_a_search_for_further_functions_keeps_earlier_results(library):
    module = library("module", f=old, g=other)
    search([old])
    search([other])
    with references_replaced([(old, new), (other, twice)]):
        assert [module.f, module.g] == [new, twice]
    assert [module.f, module.g] == [old, other]


def test_references_that_the_block_adds_are_restored_too(library):
    module = library("module", f=old)
    search([old])
    with references_replaced([(old, new)]):
        module.g = new
        loaded = library("loaded", f=new)
    assert [module.f, module.g, loaded.f] == [old, old, old]


def test_replacements_can_be_replaced_again(library):
    module = library("module", f=old)
    search([old])
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

    monkeypatch.setattr(references.glob, "_StringGlobber", Globber, raising=False)
    with references_replaced([(originals[0], lambda: "replaced")]):
        assert [Globber.scandir(), Globber.lstat()] == ["replaced", "stated"]
    assert Globber.scandir() == "scanned"
