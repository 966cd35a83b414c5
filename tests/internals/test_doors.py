"""Nothing but gpuloader.internals uses what DALI, torch and fsspec do not promise."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"nvidia", "torch", "fsspec", "aiohttp", "s3fs"}
KNOWN = {
    "_pipe",
    "_impl_module",
    "_get_default_store",
    "_is_in_bad_fork",
    "_strip_protocol",
    "_raise_not_found_for_status",
    "_info",
    "_cat_file",
}
OTHER_SIDE = "gpuloader or pipelines"


def find_private(source: str) -> list[str]:
    """What a module uses of `PACKAGES` that begins with an underscore, and `KNOWN` names on anything."""
    tree = ast.parse(source)
    imported: set[str] = set()
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            theirs = [each for each in node.names if each.name.split(".")[0] in PACKAGES]
            imported |= {(each.asname or each.name).split(".")[0] for each in theirs}
            found += [each.name for each in theirs if _is_private(each.name)]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            imported |= {each.asname or each.name for each in node.names}
            found += [each.name for each in node.names if _is_private(f"{node.module}.{each.name}")]
        elif isinstance(node, ast.FunctionDef) and node.name in KNOWN:
            found.append(node.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if node.attr in KNOWN or (name.split(".")[0] in imported and _is_private(node.attr)):
                found.append(name)
    return found


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch.cuda.is_available()", []),
        ("import torch\ntorch.cuda._is_in_bad_fork()", ["torch.cuda._is_in_bad_fork"]),
        ("import torch as t\nt._C", ["t._C"]),
        ("import torch._C", ["torch._C"]),
        ("def f():\n  from torch.distributed.distributed_c10d import _world", ["_world"]),
        ("from nvidia.dali import fn\nfn._impl.x", ["fn._impl"]),
        ("pipeline._pipe = None", ["pipeline._pipe"]),
        ("class A(B):\n  def _raise_not_found_for_status(self): ...", ["_raise_not_found_for_status"]),
        ("import torch\ntorch.__version__", []),
        ("self._value = other._value", []),
        ("import numpy\nnumpy._core", []),  # of no package here
    ],
)
def test_what_is_private(source: str, found: list[str]) -> None:
    assert find_private(source) == found


def _modules() -> list[Path]:
    modules = [*(ROOT / "gpuloader").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")]
    return [path for path in modules if ROOT / "gpuloader" / "internals" not in path.parents]


def test_others_internals_are_used_in_internals_alone() -> None:
    modules = _modules()
    assert len(modules) > 100
    assert {str(path): found for path in modules if (found := find_private(path.read_text()))} == {}


def test_each_module_of_internals_has_its_tests() -> None:
    rooms = {path.stem for path in (ROOT / "gpuloader" / "internals").glob("[!_]*.py")}
    assert rooms == {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")} - {"doors"}
