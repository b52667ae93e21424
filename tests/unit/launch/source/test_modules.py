import sys
import sysconfig

import pytest

from samestep.base.errors import UsageError
from samestep.launch.source.modules import source_of, user_folders
from support.editable import Editable


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


def test_packages_may_lack_an_init_file(tmp_path):
    for file in ("pkg/__init__.py", "pkg/sub/tool.py", "bare/sub/tool.py", "bare/sub/__main__.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()

    for name, file in (
        ("pkg.sub.tool", "pkg/sub/tool.py"),
        ("bare.sub.tool", "bare/sub/tool.py"),
        ("bare.sub", "bare/sub/__main__.py"),
    ):
        assert source_of(name, [str(tmp_path)]) == tmp_path / file
    with pytest.raises(UsageError):
        source_of("bare", [str(tmp_path)])


@pytest.mark.parametrize("name", ["absent", "outer.absent", "outer"])
def test_a_module_that_cannot_be_run_is_refused(tmp_path, name):
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "__init__.py").touch()
    with pytest.raises(UsageError, match=f"-m {name}"):
        source_of(name, [str(tmp_path)])


def test_a_module_of_an_editable_install_is_found(tmp_path, monkeypatch):
    package = tmp_path / "mine"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    for name in ("__main__.py", "deep/__init__.py", "deep/tool.py"):
        (package / name).touch()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable("mine", tmp_path)])

    assert source_of("mine", [str(tmp_path / "elsewhere")]) == package / "__main__.py"
    assert source_of("mine.deep.tool", [str(tmp_path / "elsewhere")]) == package / "deep" / "tool.py"
    assert "mine" not in sys.modules


def test_user_folders_exclude_installed_packages_and_the_library(tmp_path):
    installed = tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    library = sysconfig.get_path("stdlib")
    target = tmp_path / "packages"  # of `pip install --target`
    (target / "tqdm-4.70.1.dist-info").mkdir(parents=True)
    folders = [library, f"{library}/lib-dynload", str(installed), str(target), "/no/such"]

    assert user_folders(["", str(tmp_path), *folders, str(tmp_path)]) == [tmp_path]
