import sys

import pytest

from samestep.base.errors import UsageError
from samestep.source.modules import source_of


def test_a_module_is_found_without_importing_its_packages(tmp_path):
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "tool.py").write_text("")
    (package / "__main__.py").write_text("")

    assert source_of("outer.inner.tool", [str(tmp_path)]) == package / "tool.py"
    assert source_of("outer.inner", [str(tmp_path)]) == package / "__main__.py"
    assert "outer" not in sys.modules


@pytest.mark.parametrize("name", ["absent", "outer.absent", "outer"])
def test_a_module_that_cannot_be_run_is_refused(tmp_path, name):
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "__init__.py").touch()
    with pytest.raises(UsageError, match=f"-m {name}"):
        source_of(name, [str(tmp_path)])
