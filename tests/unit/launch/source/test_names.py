"""Only code that can be called determines the kind of a script."""

import pytest

from samestep.launch.source.classify import classify
from support.sources import written

HELPERS = {
    "a function": "import torch.multiprocessing as mp\ndef launch(f): mp.spawn(f)\ndef used(): pass",
    "a method": "import torch.multiprocessing as mp\nclass Job:\n    def start(self): mp.spawn(f)\n"
    "def used(): pass",
    "an exported name": "__all__ = ['launch']\nimport torch.distributed as d\n"
    "def launch(): d.init_process_group()\ndef used(): pass",
    "through another": "import torch.distributed as d\ndef one(): two()\ndef two(): d.init_process_group()\n"
    "def used(): pass",
}


@pytest.mark.parametrize("text", HELPERS.values(), ids=HELPERS)
def test_a_helper_that_is_defined_and_never_called_does_not_count(tmp_path, text):
    written(tmp_path, text, "helper.py")

    assert classify(written(tmp_path, "from helper import used\nused()")).kind == "serial"


CALLS = {
    "by another name": "from helper import launch as go\ngo()",
    "by an attribute": "import helper\nhelper.launch()",
    "by a string": "import helper\ngetattr(helper, 'launch')()",
    "by all names": "import helper\nhelper.by_name(name)",
    "as a method": "import helper\nhelper.Job().run()",
    "as a method that a library calls": "import helper\nlibrary.fit(helper.Job())",
    "as a registered function": "import helper",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_helper_that_can_be_called_counts(tmp_path, call):
    decorator = "@register\n" if "registered" in call else ""
    written(
        tmp_path,
        "import torch.distributed as d\n"
        f"{decorator}def launch(): d.init_process_group()\n"
        "class Job:\n    def run(self): launch()\n"
        "def by_name(name): globals()[name]()\n",
        "helper.py",
    )
    assert classify(written(tmp_path, CALLS[call])).kind == "native"
