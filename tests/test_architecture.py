"""The architecture, enforced: imports point downwards, methods are replaced in one place, engines are used by contract.

Each rule reads the syntax tree of every module, and is tested itself on code that breaks it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from extras import optional_modules

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
    {"summaries"},
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
_FROZEN = "a frozen dataclass converts its own fields"
ALLOWED_WRITES = {
    ("engines/patching.py", "setattr(module)"): "replaces a method: the only place that does",
    ("engines/patching.py", "module.__dict__[...]"): "restores the method that another library had put there",
    ("engines/patching.py", "module.__dict__.pop"): "restores the method of the class",
    ("benchmarks/decode.py", "order.view.module.forward"): "times other orders of computation inside the wrapper",
    ("hub/converters/gguf_model.py", "setattr(model)"): "clears the marks of a quantisation that is undone",
    ("hub/loading.py", "vars(config)"): "only reads it, to find the dropout rates",
    ("batch/job.py", "object.__setattr__(self)"): _FROZEN,
    ("config.py", "object.__setattr__(self)"): _FROZEN,
    ("evaluation/settings.py", "object.__setattr__(self)"): _FROZEN,
    ("training/settings.py", "object.__setattr__(self)"): _FROZEN,
}
_SERVER = "the server needs FastAPI; `unlimiformer serve` checks for it before it imports this package"
ALLOWED_OPTIONAL_IMPORTS = {
    "server/app.py": _SERVER,
    "server/connections.py": _SERVER,
    "server/mcp.py": "`unlimiformer mcp` checks for mcp before it imports this module",
    "server/middleware.py": _SERVER,
    "server/openai.py": _SERVER,
    "server/routes.py": _SERVER,
    "server/streaming.py": _SERVER,
}

_DICT_CHANGES = {"pop", "popitem", "update", "setdefault", "clear", "__setitem__", "__delitem__", "__ior__"}
_SET_FUNCTIONS = {"setattr", "delattr", "__setattr__", "__delattr__"}
_ENGINE_CLASSES = {"CausalEngine", "Seq2SeqEngine"}
_ENGINE_INTERNALS = {"indexer", "hooks"}


def _modules() -> Iterator[tuple[str, ast.Module]]:
    """Path inside the package and syntax tree of every module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())


# --- Imports point downwards ---------------------------------------------------------------------------------------


def _floor(part: str) -> int:
    return next(number for number, parts in enumerate(FLOORS) if part in parts)


def _imported_parts(path: str, tree: ast.Module) -> set[str]:
    """Top-level modules and packages of this library that a file imports, anywhere in the file."""
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == path.count("/") + 1:
            parts |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            parts |= {name.split(".")[1] for name in names if name.startswith("unlimiformer.")}
    return parts - {"__version__"}


def test_every_part_has_a_floor():
    parts = {
        path.stem if path.suffix else path.name
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts - {"__init__", "__main__"} == set().union(*FLOORS)


def test_imports_point_down():
    wrong = []
    for path, tree in _modules():
        part = path.split("/")[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        imported = _imported_parts(path, tree) - {part}
        wrong += [f"{path} imports {other}" for other in imported if _floor(other) >= _floor(part)]
    assert not wrong


# --- Methods are replaced in one place -----------------------------------------------------------------------------


def _is_dict(node: ast.AST) -> bool:
    """Whether an expression is an object's dictionary: `x.__dict__` or `vars(x)`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "vars"
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def _method_writes(tree: ast.AST) -> set[str]:
    """What in a module may replace a method of an object, as short descriptions.

    Found are: assignments to and deletions of attributes called forward or generate; calls of setattr, delattr and
    their dunder methods with any target; changes of `__dict__` or `vars(...)`, and names for them.
    """
    writes = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            if node.attr in ("forward", "generate", "__dict__"):
                writes.add(ast.unparse(node))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del) and _is_dict(node.value):
            writes.add(f"{ast.unparse(node.value)}[...]")
        elif isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
            if name in _SET_FUNCTIONS:
                target = ast.unparse(node.args[0]) if node.args else "..."
                writes.add(f"{ast.unparse(function)}({target})")
            elif isinstance(function, ast.Attribute) and name in _DICT_CHANGES and _is_dict(function.value):
                writes.add(ast.unparse(function))
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) else None
        if value is not None and _is_dict(value):
            writes.add(ast.unparse(value))
    return writes


@pytest.mark.parametrize(
    "code",
    [
        "model.forward = f",
        "model.generate: object = f",
        "a, (model.forward, b) = values",
        "del model.forward",
        "for module.forward in functions: pass",
        "with f() as model.generate: pass",
        "setattr(model, name, f)",
        "delattr(model, name)",
        "object.__setattr__(model, name, f)",
        "super().__delattr__(name)",
        "model.__dict__[name] = f",
        "del model.__dict__[name]",
        "model.__dict__.pop(name)",
        "model.__dict__.update(forward=f)",
        "model.__dict__ |= {name: f}",
        "vars(model)[name] = f",
        "vars(model).update(forward=f)",
        "fields = vars(model)",
        "fields = model.__dict__",
    ],
)
def test_a_replaced_method_is_noticed(code):
    assert _method_writes(ast.parse(code))


@pytest.mark.parametrize(
    "code", ["forward = model.forward", "f(**vars(model))", "'forward' in model.__dict__", "d[name] = model.generate()"]
)
def test_reading_a_method_is_allowed(code):
    assert not _method_writes(ast.parse(code))


def test_methods_are_replaced_in_one_place():
    writes = {(path, write) for path, tree in _modules() for write in _method_writes(tree)}
    assert writes == set(ALLOWED_WRITES)


# --- Engines are used through their contract -----------------------------------------------------------------------


def _engine_uses(tree: ast.AST) -> set[str]:
    """What in a module goes past the contract of `engines.base.Engine`: kinds of engines, or their internals."""
    uses = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.alias) and node.name.split(".")[-1] in _ENGINE_CLASSES:
            uses.add(f"import {node.name}")
        elif isinstance(node, ast.Name) and node.id in _ENGINE_CLASSES:
            uses.add(node.id)
        elif isinstance(node, ast.Attribute) and node.attr in _ENGINE_CLASSES | _ENGINE_INTERNALS:
            uses.add(ast.unparse(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            arguments = [ast.unparse(argument) for argument in node.args[1:2]]
            if node.func.id in ("isinstance", "issubclass") and any("Engine" in argument for argument in arguments):
                uses.add(ast.unparse(node))
            if node.func.id in ("getattr", "hasattr") and any(a.strip("'") in _ENGINE_INTERNALS for a in arguments):
                uses.add(ast.unparse(node))
    return uses


@pytest.mark.parametrize(
    "code",
    [
        "from ..engines import CausalEngine",
        "from ..engines.seq2seq.engine import Seq2SeqEngine as Wrapped",
        "isinstance(u.engine, engines.Seq2SeqEngine)",
        "isinstance(u.engine, (Engine, str))",
        "u.engine.indexer.index_texts(texts)",
        "u.engine.hooks.context",
        "getattr(u.engine, 'hooks')",
    ],
)
def test_a_use_past_the_contract_is_noticed(code):
    assert _engine_uses(ast.parse(code))


def test_engines_are_used_through_their_contract():
    uses = {
        (path, use)
        for path, tree in _modules()
        if not path.startswith("engines/") and path != "model.py"
        for use in _engine_uses(tree)
    }
    assert not uses


# --- Optional packages are imported where they are used ------------------------------------------------------------


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _top_level_imports(node: ast.AST) -> set[str]:
    """Packages that are imported when a module is: not inside functions, and not for type checkers only."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").partition(".")[0]} if node.level == 0 else set()
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return set()
    children = node.orelse if _is_type_checking(node) else ast.iter_child_nodes(node)  # type: ignore[attr-defined]
    return set().union(*(_top_level_imports(child) for child in children))


def test_top_level_imports_are_noticed():
    code = """
    import a.b
    from c.d import e
    from . import f
    try:
        import g
    except ImportError:
        import h
    class K:
        import i
        def m(self):
            import j
    if TYPE_CHECKING:
        import k
    else:
        import l
    """
    tree = ast.parse("if True:\n" + code)
    assert _top_level_imports(tree) == {"a", "c", "g", "h", "i", "l"}


def test_optional_packages_are_not_imported_at_top_level():
    optional = optional_modules()
    assert {"faiss", "peft", "ray", "fastapi"} <= optional and not {"torch", "transformers", "numpy"} & optional
    importing = {path for path, tree in _modules() if _top_level_imports(tree) & optional}
    assert importing == set(ALLOWED_OPTIONAL_IMPORTS)


def test_importing_the_command_line_is_light():
    code = (
        "import sys, unlimiformer, unlimiformer.cli.main; print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


# --- Nothing but tensors is unpickled ------------------------------------------------------------------------------


def test_nothing_but_tensors_is_unpickled():
    words = ("pickle", "torch.load(", "joblib", "marshal", "yaml.load")
    files = {path for path in PACKAGE.rglob("*.py") if any(word in path.read_text() for word in words)}
    assert files == {PACKAGE / "hub" / "converters" / "marian.py"}
    (code,) = (path.read_text() for path in files)
    assert sum(code.count(word) for word in words) == 1
    assert re.search(r"torch\.load\([^\n]*, weights_only=True\)", code)
