"""The first calls of modules that a script makes again every few calls are computed unsplit."""

from torch import nn

from samestep.autopilot.helpers.fresh_modules import FreshModules


class Wrapper(nn.Module):
    pass


def waiting(fresh, module, calls):
    return [fresh.waits(module) for _ in range(calls)]


def test_after_modules_of_few_calls_the_next_module_waits_until_it_has_lived():
    """Catches a module that is checked each time it is made, and a living module that is never checked."""
    fresh = FreshModules()

    assert [any(waiting(fresh, Wrapper(), 5)) for _ in range(5)] == [False, False, False, True, True]
    assert waiting(fresh, Wrapper(), 70) == [True] * 64 + [False] * 6
    assert not any(waiting(fresh, Wrapper(), 70))


def test_other_classes_and_modules_that_live_do_not_wait():
    """Catches a count over all classes, and a count of modules that still exist."""
    fresh = FreshModules()
    living = [Wrapper() for _ in range(9)]

    assert not any(any(waiting(fresh, module, 5)) for module in living)
    for _ in range(4):
        waiting(fresh, Wrapper(), 5)
    assert not any(waiting(fresh, nn.Linear(2, 2), 5))
    assert all(waiting(fresh, Wrapper(), 5))
