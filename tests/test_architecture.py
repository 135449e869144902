"""The architecture, enforced: imports point to lower floors or into one's own folder."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "unlimiformer"
FLOORS = [
    {"errors"},
    {"utils"},
    {"config", "functional", "text"},
    {"datastore"},
    {"adapters"},
    {"hub"},
    {"memory"},
    {"provenance"},
    {"engines"},
    {"model"},
    {"qa", "tasks"},
    {"evaluation"},
    {"training"},
    {"figures", "integrations"},
    {"batch", "server"},
    {"benchmarks", "demo"},
    {"estimate"},
    {"cli"},
]


def _floor(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def _imports(path: Path) -> set[str]:
    """Rooms of the package that a file imports, wherever in the file."""
    depth = len(path.relative_to(PACKAGE).parts)
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            rooms |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
    return rooms - {"__version__"}


def test_every_room_has_a_floor():
    rooms = {
        p.stem if p.suffix else p.name for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    assert rooms - {"__init__", "__main__"} == set().union(*FLOORS)


def test_imports_point_down():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        if path.name in ("__init__.py", "__main__.py") and path.parent == PACKAGE:
            continue
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        wrong += [
            f"{room} imports {other}" for other in _imports(path) if other != room and _floor(other) >= _floor(room)
        ]
    assert not wrong


def _replaces_methods(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        targets = [target for target in node.targets if isinstance(target, ast.Attribute)]
        return any(target.attr in ("forward", "generate") for target in targets)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr"


def test_only_install_replaces_methods():
    guilty = {
        path.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if _replaces_methods(node)
    }
    assert guilty == {"patching.py", "decode.py", "smollm2.py"}, (
        "decode.py measures other orders of computing, inside the wrapper; smollm2.py forgets a quantisation"
    )


def test_importing_the_package_and_asking_for_help_is_light():
    code = (
        "import sys, unlimiformer, unlimiformer.cli.main; print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert answer.strip() == "False False"


def test_nothing_is_ever_unpickled():
    words = ("pickle", "torch.load(", "joblib", "marshal", "yaml.load")
    guilty = {path.name for path in PACKAGE.rglob("*.py") if any(word in path.read_text() for word in words)}
    assert not guilty
