"""The properties of a script's source for which a verification has a further run."""

import pytest

from samestep.launch.job import Program
from samestep.verify.verification import _makes_generators, _uses_hashes

SOURCES = {
    "import torch\ng = torch.Generator()": (True, False),
    "from numpy.random import default_rng\ng = default_rng(0)": (True, False),
    "names = list({'a', 'b'})": (False, True),
    "names = {n for n in 'ab'}": (False, True),
    "names = frozenset('ab')": (False, True),
    "part = hash('a') % 2": (False, True),
    "table = {'a': 1}\nseen = []\nmodel.set(1)": (False, False),
}


@pytest.mark.parametrize("text", SOURCES)
def test_generators_and_sets_are_found_in_a_script_and_in_its_modules(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    program = Program(target=str(path))
    assert (_makes_generators(program), _uses_hashes(program)) == SOURCES[text]

    (tmp_path / "parts.py").write_text(text)
    path.write_text("import parts")
    assert (_makes_generators(program), _uses_hashes(program)) == SOURCES[text]
