"""`verify` names the first module that differs, its phase and its line, if no cause explains a difference."""

import pytest

from gallery_modules.manifest import SCRIPTS
from support.tiers import mostly_long, stem

SHORT = ("backward_hook", "batch_mean", "contrastive_loss", "rank_in_forward")
"""Both phases; a module, a loss, a submodule."""


@pytest.mark.parametrize("script", mostly_long(SCRIPTS, SHORT, stem))
def test_the_first_module_that_differs_is_named(verifier, script):
    report = verifier.verify(script.path, steps=4)
    (finding,) = report["findings"]
    assert report["verdict"] == "different"
    assert (finding["module"], finding["phase"]) == (script.module, script.phase), finding["message"]
    assert (finding["file"], finding["line"]) == script.place
