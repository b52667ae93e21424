"""Values of a script are pickled for helpers, also those that pickle itself refuses."""

import builtins

from samestep.autopilot.helpers.pickling import pickled, unpickled


def test_a_function_in_c_that_the_script_has_replaced_is_pickled_by_name(monkeypatch):
    """Only this finds that a script which replaces `print` keeps all calls unsplit."""
    original = builtins.print
    monkeypatch.setattr(builtins, "print", lambda *values: original(*values))
    content = pickled({"print": original}, lambda _: None)
    monkeypatch.undo()

    assert unpickled(content, lambda _: None) == {"print": original}
