"""Provides one measured scaling study to all tests that read one."""

import pytest

from support.forked_commands import scale


@pytest.fixture(scope="session")
def measured(tmp_path_factory):
    """Return the folder of a study of a recipe, in both modes with two variants, and the ended command."""
    folder = tmp_path_factory.mktemp("measured") / "study"
    asked = ("-n", "1,2", "--scaling", "both", "--compare", "sync=flat,ddp", "--out", folder)
    few = ("--steps=3", "--warm-up=1", "--repeats=1", "--oversubscribe")
    return folder, scale("digits", *asked, *few, "--batch-size", 24)
