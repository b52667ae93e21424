"""Finds the functions of ``src`` that call an accelerator or branch on the type of a device."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "samestep"
MODULES = (
    *("cuda", "xpu", "mps", "accelerator", "Event", "get_device_module"),
    *("amp", "autocast", "random.fork_rng", "version.cuda", "version.hip"),
)
"""Names in ``torch`` of which each use counts."""
BACKENDS = ("cuda", "cudnn", "mps", "xpu")
TYPES = {"cpu", "cuda", "xpu", "mps"}
KEYWORDS = {"pin_memory", "non_blocking"}
SKIPPED = (SOURCE / "scaling",)
"""Studies, which compare the values of files on any machine."""


def uses_accelerator(node: ast.AST) -> bool:
    """Return whether a node uses an accelerator's module or type, or compares a device type."""
    if isinstance(node, ast.Attribute):
        text = ast.unparse(node)
        uses = [f"torch.{name}" for name in MODULES] + [f"torch.backends.{name}" for name in BACKENDS]
        return text in uses
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith(("torch.cuda", "torch.xpu", "torch.accelerator"))
    if isinstance(node, ast.keyword):
        return node.arg in KEYWORDS
    if isinstance(node, ast.Constant):
        return node.value in TYPES - {"cpu"}
    if isinstance(node, ast.Compare):
        return any(_is_type(one) for one in (node.left, *node.comparators))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return any(_is_type(one) for one in node.args)
    return False


def _is_type(node: ast.AST) -> bool:
    """Return whether a value is a device type: its name, the attribute of a device, or several of them."""
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return any(_is_type(one) for one in node.elts)
    if isinstance(node, ast.Attribute):
        return ast.unparse(node).endswith("device.type")
    return isinstance(node, ast.Constant) and node.value in TYPES


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield each function with its qualified name; the parts of inner functions belong to the outer one."""

    def within(node: ast.AST, path: tuple[str, ...]) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield ".".join((*path, child.name)), child
            elif isinstance(child, ast.ClassDef):
                yield from within(child, (*path, child.name))

    yield from within(tree, ())


def found() -> set[str]:
    """Return the functions as ``folder/module.py:function``."""
    return {
        f"{path.relative_to(SOURCE)}:{name}"
        for path in SOURCE.rglob("*.py")
        if not any(one in path.parents for one in SKIPPED)
        for name, function in functions(ast.parse(path.read_text()))
        if any(uses_accelerator(node) for node in ast.walk(function))
    }
