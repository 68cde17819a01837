"""Reading of PBG's Python configs without running them.

That works as long as they consist of values. Supported are: names bound once, to literals, in the file or in
``get_torchbiggraph_config``; dicts, ``dict(k=v)``, lists and tuples; arithmetic of numbers; strings put together with
``+`` or as f-strings of such names.
"""

from __future__ import annotations

import ast
import operator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

FUNCTION = "get_torchbiggraph_config"

_MAX_INT = 2**63
_MAX_EXPONENT = 1024
_MAX_TEXT = 65_536
_MAX_VALUES = 1_000_000
_MAX_SHOWN = 80
_OPAQUE = object()  # value of a name that is bound to no literal but, for example, to a module or function
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def read_literal_config(text: str, *, source: str) -> Any:  # noqa: ANN401 - whatever the function returns
    """Return the result of a file's ``get_torchbiggraph_config()``, without running it.

    Tuples become lists.

    Raises:
        ConfigError: the file is no Python, has no such function, or computes something; the message names the line, the
            computation and the way to convert the file.
        RecursionError: it is nested too deeply.
    """
    try:
        module = ast.parse(text, filename=source)
    except SyntaxError as error:
        raise ConfigError(f"{source}:{error.lineno or 1}: not valid Python: {error.msg}") from None
    except ValueError as error:  # Python before 3.11.4 raises it for null bytes
        line = text.partition("\0")[0].count("\n") + 1
        raise ConfigError(f"{source}:{line}: not valid Python: {error}") from None
    except MemoryError:  # the parser raises it for too many brackets
        raise RecursionError from None
    return _Reader(source).config(module)


class _Reader:
    """Evaluator of the few forms that are literals.

    Attributes:
        source: name of the file in errors.
        names: values by the names they were bound to so far.
        values: number of values read so far; those of a name count as often as it appears.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.names: dict[str, Any] = {}
        self.values = 0
        self._sizes: dict[str, int] = {}

    def config(self, module: ast.Module) -> Any:  # noqa: ANN401 - whatever the function returns
        functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == FUNCTION]
        if len(functions) != 1:
            found = "is defined twice" if functions else "is missing"
            raise ConfigError(f"{self.source}: function {FUNCTION}() {found}; a PBG config defines it once")
        (function,) = functions
        if ast.unparse(function.args):
            raise self._refusal(function, f"{FUNCTION} takes parameters")
        if function.decorator_list:
            raise self._refusal(function.decorator_list[0], "a decorator changes the function")
        self._bind_all(module.body)
        bound = {target.id for target in _targets(function.body)}
        self.names = {name: value for name, value in self.names.items() if name not in bound}
        for statement in function.body:
            if isinstance(statement, ast.Return):
                return self.value(statement.value or ast.Constant(None))
            self._bind_all([statement])
        raise ConfigError(f"{self.source}:{function.lineno}: {FUNCTION}() returns nothing")

    def _bind_all(self, statements: Sequence[ast.stmt]) -> None:
        """Bind names; skip statements that cannot change a bound value."""
        for statement in statements:
            match statement:
                case ast.Pass() | ast.Expr(ast.Constant()):
                    pass
                case ast.If(ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]), orelse=[]):
                    pass  # runs under `python my_config.py` only, and PBG imports the file
                case ast.FunctionDef(name) | ast.ClassDef(name):
                    self._bind(name, _OPAQUE, statement)
                case ast.Import(aliases) | ast.ImportFrom(names=aliases):
                    for alias in aliases:
                        self._bind(alias.asname or alias.name.partition(".")[0], _OPAQUE, statement)
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), value=ast.expr() as value):
                    before = self.values
                    self._bind(name, self.value(value), statement)
                    self._sizes[name] = self.values - before
                case _:
                    raise self._refusal(statement, "this statement computes")

    def _bind(self, name: str, value: Any, statement: ast.stmt) -> None:  # noqa: ANN401 - any literal
        if name in self.names or name == "*":
            raise self._refusal(statement, f"{name!r} may be bound twice")
        self.names[name] = value

    def value(self, node: ast.expr) -> Any:  # noqa: ANN401 - any literal
        self.values += self._sizes.get(node.id, 1) if isinstance(node, ast.Name) else 1
        if self.values > _MAX_VALUES:
            raise self._refusal(node, f"more than {_MAX_VALUES} values")
        match node:
            case ast.Constant(str() | int() | float() | None as constant):
                return self._bounded(constant, node)
            case ast.JoinedStr(parts):
                return self._bounded("".join(self._part(part) for part in parts), node)
            case ast.Name(name) if self.names.get(name, _OPAQUE) is not _OPAQUE:
                return self.names[name]
            case ast.UnaryOp() | ast.BinOp():
                return self._computed(node)
        return self._container(node)

    def _container(self, node: ast.expr) -> list[Any] | dict[str, Any]:
        match node:
            case ast.List(items) | ast.Tuple(items):
                return [self.value(item) for item in items]
            case ast.Dict(keys, values):
                return self._pairs(zip(keys, values, strict=True), node)
            case ast.Call(ast.Name("dict"), [], keywords) if "dict" not in self.names:
                named = ((ast.Constant(word.arg) if word.arg else None, word.value) for word in keywords)
                return self._pairs(named, node)
        raise self._refusal(node, "this is computed")

    def _pairs(self, pairs: Iterable[tuple[ast.expr | None, ast.expr]], node: ast.expr) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in pairs:
            if key_node is None:
                raise self._refusal(value_node, "** merges dicts")
            key = self.value(key_node)
            if not isinstance(key, str):
                raise self._refusal(node, f"key {key!r} is no string")
            if key in result:
                raise ConfigError(f"{self.source}:{value_node.lineno}: key {key!r} appears twice")
            result[key] = self.value(value_node)
        return result

    def _part(self, node: ast.expr) -> str:
        """Return one piece of an f-string.

        It is text, or a name in plain braces that holds text or an integer.
        """
        match node:
            case ast.Constant(str() as text):
                return text
            case ast.FormattedValue(value, conversion=-1, format_spec=None):
                inner = self.value(value)
                if isinstance(inner, str | int):
                    return str(inner)
        raise self._refusal(node, "this is computed")

    def _computed(self, node: ast.UnaryOp | ast.BinOp) -> Any:  # noqa: ANN401 - number or text
        left: Any
        match node:
            case ast.UnaryOp(ast.USub() | ast.UAdd() as sign, operand):
                left, right = 0, self.value(operand)
                compute = operator.sub if isinstance(sign, ast.USub) else operator.add
            case ast.BinOp(first, symbol, second) if type(symbol) in _ARITHMETIC:
                left, right = self.value(first), self.value(second)
                compute = _ARITHMETIC[type(symbol)]
            case _:
                raise self._refusal(node, "this is computed")
        if not (_is_number(left) and _is_number(right)):
            if compute is operator.add and isinstance(left, str) and isinstance(right, str):
                return self._bounded(left + right, node)
            raise self._refusal(node, "this is computed")
        if compute is operator.pow and abs(right) > _MAX_EXPONENT:  # refused before it takes all memory
            raise self._refusal(node, "this number is too large")
        try:
            return self._bounded(compute(left, right), node)
        except ArithmeticError as error:
            raise ConfigError(f"{self.source}:{node.lineno}: `{ast.unparse(node)}`: {error}") from None

    def _bounded(self, value: Any, node: ast.expr) -> Any:  # noqa: ANN401 - a scalar
        """Refuse values that grow beyond their limits.

        Small inputs could have huge values: sums of sums of strings, powers of powers.
        """
        if isinstance(value, int) and abs(value) > _MAX_INT:
            raise self._refusal(node, "this number is too large")
        if isinstance(value, str) and len(value) > _MAX_TEXT:
            raise self._refusal(node, "this text is too long")
        if isinstance(value, complex):
            raise self._refusal(node, "this number is complex")
        return value

    def _refusal(self, node: ast.AST, what: str) -> ConfigError:
        stem = PurePosixPath(self.source).stem
        stem = stem if stem.isidentifier() else "my_config"
        try:
            code = " ".join(ast.unparse(node).split())
        except ValueError:  # Python refuses to write an integer of thousands of digits
            code = "..."
        line = getattr(node, "lineno", 0)
        return ConfigError(
            f"{self.source}:{line}: {what}: `{code[:_MAX_SHOWN]}`; a config is read, "
            f"never run. Write the value out, or convert the file, in its folder, with: python -c "
            f'"import json, {stem}; print(json.dumps({stem}.{FUNCTION}()))" > {stem}.json'
        )


def _is_number(value: Any) -> bool:  # noqa: ANN401 - any literal
    return isinstance(value, int | float) and not isinstance(value, bool)


def _targets(statements: Sequence[ast.stmt]) -> Iterable[ast.Name]:
    """Yield the names that plain assignments among ``statements`` bind."""
    for statement in statements:
        match statement:
            case ast.Assign([ast.Name() as target]) | ast.AnnAssign(ast.Name() as target):
                yield target
