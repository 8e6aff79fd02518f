"""The architecture: imports go down the layers only, and light packages do not import torch."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "shoal"
FILES = sorted(PACKAGE.rglob("*.py"))

BASE = {
    "allocator",
    "boxes",
    "errors",
    "files",
    "arrays",
    "device",
    "distributed",
    "progress",
    "settings",
}
PEERS = {"runs", "data", "encoders", "clustering"}
BELOW_REPORT = {
    "errors",
    "files",
    "arrays",
    "progress",
    "settings",
    "runs",
    "clustering.matching",
    "clustering.tree",
}
MAY_IMPORT = {
    "errors": set(),
    "allocator": set(),
    "boxes": set(),
    "arrays": {"errors", "files"},
    "device": {"errors"},
    "distributed": {"errors"},
    "files": {"errors"},
    "settings": {"errors"},
    "progress": set(),
    "runs": BASE,
    "data": BASE,
    "encoders": BASE,
    "clustering": BASE,
    "training": BASE | PEERS,
    "methods": BASE | PEERS | {"training"},
    "reproduce": BASE | PEERS | {"training", "methods"},
    "review": {"errors", "arrays", "files", "runs"},
    "report": BELOW_REPORT | {"review"},
    "discovery": BASE | PEERS | {"training", "methods", "review", "report"},
    "server": {
        *BELOW_REPORT,
        "boxes",
        "review",
        "report",
        "data.pixels.decoding",
        "data.readers.shards",
    },
    "cli": BASE
    | PEERS
    | {"training", "methods", "discovery", "reproduce", "review", "report", "server"},
    "__main__": {"cli"},
}


def package_of(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def modules_imported_by(file: Path) -> set[str]:
    """Return all shoal modules that a file imports, at any level of nesting, without the prefix
    'shoal.'."""
    found = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            assert all(alias.name != "*" for alias in node.names), f"{file}: star import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("shoal.") for name in found if name.startswith("shoal.")}


def is_allowed(module: str, package: str) -> bool:
    parts = module.split(".")
    prefixes = {".".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
    return parts[0] == package or parts[0] == "__version__" or bool(prefixes & MAY_IMPORT[package])


def test_imports_go_down_only() -> None:
    wrong = [
        f"{file.relative_to(PACKAGE)}: {module}"
        for file in FILES
        if file != PACKAGE / "__init__.py"  # exports all public names
        for module in modules_imported_by(file)
        if not is_allowed(module, package_of(file))
    ]
    assert not wrong


def test_no_file_imports_itself_by_way_of_others() -> None:
    """Imports inside functions count too, so that they cannot hide an import cycle."""
    modules = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in FILES}
    imports = {
        name: {found for one in modules_imported_by(file) if (found := _file_of(one, set(modules)))}
        for name, file in modules.items()
    }
    while leaves := {name for name, found in imports.items() if not found}:
        imports = {name: found - leaves for name, found in imports.items() if name not in leaves}
    while tops := set(imports) - {name for found in imports.values() for name in found}:
        imports = {name: found for name, found in imports.items() if name not in tops}
    assert not imports, f"circles among {sorted(imports)}"


def _file_of(name: str, modules: set[str]) -> str | None:
    """Return the module that a name such as 'runs.Run', 'runs' or 'files' is imported from; for a
    package, its __init__.py."""
    parent = name.rpartition(".")[0]
    places = [name, f"{name}.__init__", parent, f"{parent}.__init__"]
    return next((place for place in places if place in modules), None)


LIGHT_MODULES = (
    "shoal",
    "shoal.runs",
    "shoal.clustering.matching",
    "shoal.clustering.n_clusters",
    "shoal.clustering.tree",
    "shoal.review.verbs",
    "shoal.server.app",
    "shoal.arrays",
    "shoal.settings",
    "shoal.cli.main",
)


def test_light_modules_load_no_torch() -> None:
    code = (
        f"import sys, {', '.join(LIGHT_MODULES)}\n"
        "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _imported(node: ast.AST) -> set[str]:
    """Return the top-level modules of an import statement."""
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").partition(".")[0]}
    return (
        {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.Import)
        else set()
    )


def test_nothing_pickles() -> None:
    """No pickle is written or read: weights from others are loaded with weights_only, arrays
    without allow_pickle."""
    for file in FILES:
        for node in ast.walk(parsed(file)):
            assert not _imported(node) & {"pickle", "cloudpickle", "dill", "joblib"}, file
            if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
                assert isinstance(node.value, ast.Constant)
                assert node.value.value is (node.arg == "weights_only"), file
