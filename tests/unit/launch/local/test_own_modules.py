import importlib
import secrets
import sys
from pathlib import Path

import pytest

from samestep.launch.local.own_modules import unload_shadowed


@pytest.fixture
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.mark.usefixtures("_modules")
@pytest.mark.parametrize("file", ["secrets.py", "secrets/__init__.py"])
def test_a_module_of_the_program_comes_before_a_loaded_one(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("KEY = 1\n")
    assert unload_shadowed(str(tmp_path)) == ["secrets"]
    spec = importlib.machinery.PathFinder.find_spec("secrets", [str(tmp_path)])
    assert "secrets" not in sys.modules
    assert spec is not None
    assert spec.origin == str(tmp_path / file)


@pytest.mark.usefixtures("_modules")
def test_modules_of_a_hidden_package_are_unloaded(tmp_path: Path) -> None:
    (tmp_path / "email.py").write_text("")
    importlib.import_module("email.utils")
    assert unload_shadowed(str(tmp_path)) == ["email"]
    assert not [name for name in sys.modules if name.partition(".")[0] == "email"]


@pytest.mark.usefixtures("_modules")
@pytest.mark.parametrize(
    "file",
    [
        "sys.py",  # built in
        "abc.py",  # frozen, or loaded at the start
        "os.py",
        "torch.py",
        "samestep/__init__.py",
        "__main__.py",
        "secrets/key.py",  # a folder without __init__.py comes after the library
        "secrets.txt",
        "not_loaded.py",
    ],
)
def test_other_modules_stay(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    before = dict(sys.modules)
    assert unload_shadowed(str(tmp_path)) == []
    assert sys.modules == before


@pytest.mark.usefixtures("_modules")
def test_a_loaded_module_of_the_same_folder_stays(tmp_path: Path) -> None:
    assert "secrets" not in unload_shadowed(str(Path(secrets.__file__).parent))
    assert unload_shadowed(str(tmp_path / "absent")) == []
