"""The code base keeps its rules: imports, public names, sizes, and pages that are generated from it."""

import ast
import builtins
import inspect
import re
import subprocess
import sys
from io import StringIO
from keyword import kwlist
from pathlib import Path
from token import NAME
from tokenize import generate_tokens
from typing import get_args, get_type_hints

import pytest

import samestep
import samestep_lab
from samestep.hooks.declarations import ALL

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "samestep"
LAB = ROOT / "lab" / "src" / "samestep_lab"
MODULES = sorted(SOURCE.rglob("*.py"))
LAB_MODULES = sorted(LAB.rglob("*.py"))
LONGEST = 700
CAUGHT = {
    "AuthenticationError": "a connection without the secret; the store retries or raises WorldError",
    "ExitsError": "the call is not split",
    "Interrupted": "an evaluation; the training saves a checkpoint and raises Preempted",
    "MirrorError": "the calls of the module are not split",
    "NoSharedMemory": "the world uses its back end",
    "NotConnected": "the world uses its back end",
    "OtherBranchError": "the call is not split",
    "OtherRankFailedError": "the rank that failed raises its error",
    "StepLimitReached": "ends a recipe that is measured",
    "TrainsError": "the call is not split",
    "UnmatchedParametersError": "parameters are compared without their names",
    "UnsentError": "the call is not split",
    "WritesFileError": "the call is not split",
    "_NotExtrapolated": "becomes UsageError",
    "FormatError": "becomes UsageError",
}
"""Exceptions that samestep raises and catches itself, and what follows."""


def python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_importing_samestep_or_its_command_line_does_not_import_torch():
    modules = (
        "sys, samestep, samestep.errors, samestep.cli.main, samestep.cli.doctor, samestep.parallel.sharding"
    )
    code = f"import {modules}; print('torch' in sys.modules)"

    assert python(code) == "False"


def test_public_names_are_these_and_all_load():
    assert sorted(samestep.__all__) == samestep.__all__
    assert samestep.__all__ == [
        "Error",
        "Exact",
        "LogicalShard",
        "Place",
        "Position",
        "Replicas",
        "ShardedLoader",
        "TimedRegion",
        "UnpaddedSampler",
        "Work",
        "World",
        "accumulate",
        "batch_dim",
        "errors",
        "join",
        "load",
        "load_weights",
        "replicate",
        "save",
        "shard",
        "spawn",
        "timed",
        "workers",
    ]
    for name in samestep.__all__:
        assert getattr(samestep, name).__name__.removeprefix("samestep.") == name


def returned_types(fn):
    """Return the classes of samestep in the annotation of what `fn` returns or yields."""
    waiting, found = [get_type_hints(fn).get("return")], set()
    while waiting:
        one = waiting.pop()
        waiting += get_args(one)
        if isinstance(one, type) and one.__module__.startswith("samestep."):
            found.add(one)
    return found


def test_classes_that_public_functions_and_methods_return_are_public():
    public = {getattr(samestep, name) for name in samestep.__all__ if name != "errors"}
    functions = {one for one in public if inspect.isfunction(one)}
    for kind in public - functions:
        for name, member in vars(kind).items():
            function = member.fget if isinstance(member, property) else member
            if inspect.isfunction(function) and not name.startswith("_"):
                functions.add(function)

    returned = set().union(*map(returned_types, functions))
    assert {samestep.Work, samestep.Position, samestep.Replicas, samestep.World} < returned
    assert returned <= public


def exceptions_by_file():
    """Return the names of the exception classes that each module of samestep defines."""
    kinds = {
        name
        for name, one in vars(builtins).items()
        if inspect.isclass(one) and issubclass(one, BaseException)
    }
    trees = {path: ast.parse(path.read_text()) for path in MODULES}
    defined = {
        path: {
            node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }
        for path, tree in trees.items()
    }
    while (
        new := {name for classes in defined.values() for name, bases in classes.items() if bases & kinds}
        - kinds
    ):
        kinds |= new
    return {
        path: {name for name, bases in classes.items() if bases & kinds} for path, classes in defined.items()
    }


def test_every_exception_that_reaches_a_user_has_a_public_name():
    found = exceptions_by_file()
    public = found.pop(SOURCE / "base" / "errors.py")

    assert sorted(public) == samestep.errors.__all__
    assert set().union(*found.values()) == set(CAUGHT)
    for name in public:
        kind = getattr(samestep.errors, name)
        assert f"{kind.__module__}.{kind.__qualname__}" == f"samestep.errors.{name}"
    assert samestep.Error is samestep.errors.Error


def test_the_lab_has_the_version_of_the_package_and_needs_it():
    version = samestep.__version__
    assert samestep_lab.__version__ == version
    assert f'dependencies = ["samestep=={version}"]' in (ROOT / "lab" / "pyproject.toml").read_text()


def test_type_checkers_see_the_same_public_names():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    names = {alias.asname or alias.name for node in guarded.body for alias in node.names}

    assert names == set(samestep.__all__)


def test_the_former_name_of_work_warns_with_the_present_name():
    with pytest.warns(DeprecationWarning, match=r"samestep.Pending is now samestep.Work"):
        assert samestep.Pending is samestep.Work


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = samestep.nonsense


def test_the_init_file_of_a_folder_is_one_sentence():
    with_names = {SOURCE, LAB, LAB / "testing"}  # which a user imports, or which have a version
    trees = {
        path: ast.parse(path.read_text())
        for path in [*MODULES, *LAB_MODULES]
        if path.name == "__init__.py" and path.parent not in with_names
    }
    found = {path for path, tree in trees.items() if len(tree.body) != 1 or "\n" in ast.get_docstring(tree)}

    assert found == set()


def test_no_module_is_longer_than_the_limit():
    modules = [*MODULES, *LAB_MODULES]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules}

    assert {path: length for path, length in lengths.items() if length > LONGEST} == {}


def test_relative_links_resolve():
    found = [
        f"{page.relative_to(ROOT)} links to {target}"
        for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists()
    ]

    assert found == []


def test_the_pages_about_the_code_name_files_that_exist():
    pages = [(ROOT / name).read_text() for name in ("docs/design.md", "CONTRIBUTING.md")]
    names = [re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", page) for page in pages]
    paths = {f"/{path.relative_to(ROOT)}" for path in [*SOURCE.rglob("*"), *LAB.rglob("*")]}

    def exists(name: str) -> bool:
        return (ROOT / name).exists() or any(path.endswith(f"/{name.rstrip('/')}") for path in paths)

    assert all(names)
    assert [name for one in names for name in one if not exists(name)] == []


OF_LIBRARIES = {
    *("DTensor", "ModuleList", "ProcessContext", "fully_shard", "functional_call", "get_backend", "vmap"),
    *("permutation", "PYTHONPATH", "__del__"),
}
"""Names of torch, NumPy and Python that only docstrings have."""


def code_and_docstrings(path: Path) -> tuple[set[str], list[str]]:
    """Return the identifiers and single words of a module's code, and its docstrings."""
    text = path.read_text()
    tree = ast.parse(text)
    names = {token.string for token in generate_tokens(StringIO(text).readline) if token.type == NAME}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    texts = [node.value for node in constants if isinstance(node.value, str)]
    words = {word for text in texts if not re.search(r"\s", text) for word in re.findall(r"\w+", text)}
    docstrings = [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    return names | words | {path.stem, path.parent.name}, [
        text for text in docstrings if isinstance(text, str)
    ]


def test_names_in_docstrings_exist():
    """A module or a function that was renamed stays in the docstrings that refer to it."""
    found = {path: code_and_docstrings(path) for path in [*MODULES, *LAB_MODULES]}
    known = (
        set(dir(builtins)) | set(kwlist) | OF_LIBRARIES | set().union(*(names for names, _ in found.values()))
    )
    missing = [
        f"{path.name}: `{name}`"
        for path, (_, docstrings) in found.items()
        for text in docstrings
        for name in re.findall(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)", text)
        if not known.issuperset(name.rstrip(".").split("."))
    ]
    assert missing == []


PRONOUNS = {
    *("one", "other", "others", "its", "their", "theirs", "mine", "own", "another", "what"),
    *("given", "found", "alike", "apart"),
}
"""Words that do not say what a variable holds."""


def test_variables_have_the_names_of_things():
    named = [
        f"{module.name}: {node.arg if isinstance(node, ast.arg) else node.id}"
        for module in [*MODULES, *LAB_MODULES]
        if module.parent.name != "solutions"
        for node in ast.walk(ast.parse(module.read_text()))
        if (isinstance(node, ast.arg) and node.arg in PRONOUNS)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in PRONOUNS)
    ]
    assert named == []


INTERPRETERS = ("sys.argv", "sys.path", "sys.modules['__main__']", "os.environ[", "del os.environ[")
"""Statements that change the interpreter's state, as a fresh one would have it."""
NO_HOOKS = {
    "base/console.py: setattr(sys, name, open(number, 'w' if number else 'r', closefd=False))": (
        "standard streams that are closed"
    ),
    "launch/local/hosting.py: del sys.modules[loaded]": "the interpreter's own dictionary",
    "exercises/own_function.py: sys.modules[module.__name__] = module": "the interpreter's own dictionary",
    "launch/local/child.py: sys.unraisablehook = report_unless_interrupted": "the interpreter's own setting",
    "ranks/world/torch_rendezvous.py: handlers[scheme] = _kept_for_group(handlers[scheme])": (
        "torch's registry of URL schemes, which is a dictionary"
    ),
}
"""Changes of other libraries that no hook can declare, and what they change."""
SETTERS = {"setattr", "delattr", "object.__setattr__", "type.__setattr__"}


CONSTRUCTORS = {
    *("arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "ones", "rand"),
    *("randint", "randn", "randperm", "scalar_tensor", "tensor", "zeros"),
}
"""Functions of torch that create tensors on the default device."""
WITH_SCRIPTS = ("autopilot", "hooks", "observe", "parallel", "ranks", "run", "verify", "training")
"""Folders whose code runs within scripts, which may have set a default device."""


def without_device(code: str) -> list[str]:
    """Return the calls that create a tensor on the default device."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    own = [call for call in calls if ast.unparse(call.func) in {f"torch.{name}" for name in CONSTRUCTORS}]
    return [
        ast.unparse(call) for call in own if {"device", None}.isdisjoint(one.arg for one in call.keywords)
    ]


def test_own_tensors_are_not_on_the_default_device_of_a_script():
    modules = [path for folder in WITH_SCRIPTS for path in (SOURCE / folder).rglob("*.py")]
    found = {str(path): without_device(path.read_text()) for path in modules}
    assert {path: calls for path, calls in found.items() if calls} == {}


def test_the_search_for_tensors_on_the_default_device_finds_them():
    code = "torch.zeros(2)\ntorch.ones(2, device='cpu')\ntorch.zeros_like(x)\ntorch.rand(1, **options)"
    assert without_device(code) == ["torch.zeros(2)"]


def foreign_names(tree: ast.Module) -> set[str]:
    """Return the names that a module imports from other packages."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("samestep"):
            found |= {alias.asname or alias.name for alias in node.names}
    found.discard("samestep")
    while new := set(aliases(tree, found)) - found:
        found |= new
    return found


def aliases(tree: ast.Module, foreign: set[str]):
    """Yield the names of variables whose value is, or is part of, another library."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            is_imported = isinstance(node.value, ast.Call) and "import" in ast.unparse(node.value.func)
            if is_imported or root_of(node.value) in foreign:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (one.id for one in targets if isinstance(one, ast.Name))
        elif isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
            iterated = node.iter.func if isinstance(node.iter, ast.Call) else node.iter
            if root_of(iterated) in foreign and "subclasses" in ast.unparse(iterated):
                yield node.target.id


def root_of(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if not isinstance(node, ast.Call):
            node = node.value
        elif ast.unparse(node.func) in ("vars", "getattr") and node.args:
            node = node.args[0]
        else:
            return None
    return node.id if isinstance(node, ast.Name) else None


def patches_of(tree: ast.Module):
    """Yield the statements that change an attribute of another library."""
    foreign = foreign_names(tree)
    for node in ast.walk(tree):
        targets: list[ast.AST] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
            targets = [node.target]
        elif isinstance(node, ast.withitem) and node.optional_vars:
            targets = [node.optional_vars]
        parts = [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
        changed = [one for one in parts if isinstance(one, ast.Attribute | ast.Subscript)]
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("builtins.") in SETTERS:
            changed = node.args[:1]
        if any(root_of(one) in foreign for one in changed):
            yield ast.unparse(node)
        if isinstance(node, ast.ImportFrom | ast.Import) and "mock" in ast.unparse(node):
            yield ast.unparse(node)


def test_only_hooks_change_attributes_of_other_libraries():
    found = {
        f"{module.relative_to(SOURCE if module in MODULES else LAB)}: {patch}"
        for module in [*MODULES, *LAB_MODULES]
        if module.parent != SOURCE / "hooks"
        for patch in patches_of(ast.parse(module.read_text()))
        if not patch.startswith(INTERPRETERS)
    }

    assert found == set(NO_HOOKS)


def test_no_hook_replaces_a_method_of_samestep():
    assert [hook.name for hook in ALL if hook.library == "samestep"] == []


def test_the_search_for_patches_finds_them():
    patches = """
import torch, os
from torch import nn
from unittest.mock import patch
torch.autograd.backward = None
nn.Module.__call__ += 1
setattr(os, "stat", None)
object.__setattr__(nn.Module, "x", 1)
del torch.compile
torch.compile, os.stat = None, None
vars(torch)["compile"] = None
torch.__dict__["compile"] = None
library: Any = importlib.import_module("torch.distributed")
library.barrier = None
functional = nn.functional
functional.dropout = None
with open("x") as nn.file:
    pass
for kind in nn.Module.__subclasses__():
    kind.forward = None
"""
    assert len(list(patches_of(ast.parse(patches)))) == 13


def test_pages_and_pictures_that_scripts_write_are_up_to_date():
    for script in ("draw_claim.py", "draw_rooms.py", "list_commands.py", "list_hooks.py", "list_steps.py"):
        subprocess.run([sys.executable, ROOT / "docs" / script, "--check"], check=True)
