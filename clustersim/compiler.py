"""What numba knows of functions of the subset (``clustersim.compiled``): their lists, and that they are one unit.

By itself numba hands each list of a named tuple from function to function as seven values, and optimises each function
together with all that it calls, again and again. Here a named tuple is one address: of a table that says where each
list is, how many places it has, and how many are in a row. And a function and all that it calls share one library,
which is optimised once. Compiling takes a quarter of the time for that.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from types import FunctionType
from typing import Any, Final

import numpy as np
from llvmlite import ir
from llvmlite.binding import Linkage
from numba import njit, types
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import intrinsic, lower_builtin, lower_getattr_generic, register_model
from numba.np.numpy_support import from_dtype

ABOUT: Final = 3
"""Numbers that describe a list: its address, its rows or places, and places in a row."""
INNER: Final[dict[str, Any]] = {
    "error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
}  # fmt: skip
"""Nothing is allocated, so nobody counts references."""
OUTER: Final[dict[str, Any]] = {"error_model": "numpy", "_nrt": False, "cache": True, "nogil": True}
"""Of what is called from Python, whose other threads go on meanwhile."""


# ---- types of lists -------------------------------------------------------------------------------------------------
class List(types.Type):
    """A list of numbers or records, or rows of them."""

    def __init__(self, element: Any, dimensions: int) -> None:
        super().__init__(f"List({element}, {dimensions})")
        self.element = element
        self.dimensions = dimensions


class Lists(types.Type):
    """A named tuple of lists: the address of the table that describes them."""

    def __init__(self, fields: tuple[tuple[str, List], ...]) -> None:
        known = ", ".join(f"{name}: {each.name}" for name, each in fields)
        super().__init__(f"Lists({blake2b(known.encode(), digest_size=8).hexdigest()})")  # names of functions have it
        self.places = {name: (at, each) for at, (name, each) in enumerate(fields)}


@register_model(List)
class _ListModel(models.StructModel):
    def __init__(self, manager: Any, kind: List) -> None:
        super().__init__(manager, kind, [("address", types.intp), ("places", types.intp), ("width", types.intp)])


@register_model(Lists)
class _ListsModel(models.OpaqueModel):
    pass


@infer_getattr
class _Fields(AttributeTemplate):
    key = Lists

    def generic_resolve(self, kind: Any, name: str) -> Any:  # type: ignore[override]
        """Return the type of a list."""
        return kind.places[name][1] if name in kind.places else None


@infer_global(operator.getitem)
class _Read(AbstractTemplate):
    def generic(self, args: Sequence[Any], kws: Any) -> Any:
        """Return what there is in a place."""
        kind, at = args
        if isinstance(kind, List) and isinstance(at, types.Integer):
            return signature(kind.element if kind.dimensions == 1 else List(kind.element, 1), kind, types.intp)
        return None


@infer_global(operator.setitem)
class _Write(AbstractTemplate):
    def generic(self, args: Sequence[Any], kws: Any) -> Any:
        """Return what can be put into a place."""
        kind, at, _ = args
        if isinstance(kind, List) and isinstance(at, types.Integer) and kind.dimensions == 1:
            return signature(types.none, kind, types.intp, kind.element)
        return None


@infer_global(len)
class _Length(AbstractTemplate):
    def generic(self, args: Sequence[Any], kws: Any) -> Any:
        """Return the type of a length."""
        return signature(types.intp, args[0]) if isinstance(args[0], List) else None


def _told(builder: Any, table: Any, at: int) -> Any:
    """Return a number of a table that nothing changes while functions run, which the optimizer knows."""
    place = builder.gep(table, [ir.Constant(ir.IntType(64), at)])
    found = builder.load(place)
    found.set_metadata("invariant.load", builder.module.add_metadata([]))
    return found


def _list_at(context: Any, builder: Any, kind: List, table: Any, at: int) -> Any:
    made = cgutils.create_struct_proxy(kind)(context, builder)
    made.address, made.places, made.width = [_told(builder, table, ABOUT * at + one) for one in range(ABOUT)]
    return made._getvalue()


@lower_getattr_generic(Lists)
def _read_list(context: Any, builder: Any, kind: Lists, value: Any, name: str) -> Any:
    at, each = kind.places[name]
    table = builder.bitcast(value, ir.IntType(64).as_pointer())
    return _list_at(context, builder, each, table, at)


def _address(context: Any, builder: Any, kind: List, value: Any, at: Any) -> Any:
    """Return the address of a place."""
    known = cgutils.create_struct_proxy(kind)(context, builder, value=value)
    step = ir.Constant(ir.IntType(64), context.get_abi_sizeof(context.get_data_type(kind.element)))
    if kind.dimensions > 1:
        step = builder.mul(step, known.width, flags=["nsw"])
    return builder.add(known.address, builder.mul(at, step, flags=["nsw"]), flags=["nsw"])


@lower_builtin(operator.getitem, List, types.intp)
def _read(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    kind = sig.args[0]
    address = _address(context, builder, kind, *args)
    if kind.dimensions > 1:
        known = cgutils.create_struct_proxy(kind)(context, builder, value=args[0])
        row = cgutils.create_struct_proxy(sig.return_type)(context, builder)
        row.address, row.places, row.width = address, known.width, known.width
        return row._getvalue()
    place = builder.inttoptr(address, context.get_data_type(kind.element).as_pointer())
    return context.unpack_value(builder, kind.element, place)


@lower_builtin(operator.setitem, List, types.intp, types.Any)
def _write(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    kind = sig.args[0]
    place = builder.inttoptr(
        _address(context, builder, kind, *args[:2]), context.get_data_type(kind.element).as_pointer()
    )
    context.pack_value(builder, kind.element, args[2], place)
    return context.get_dummy_value()


@lower_builtin(len, List)
def _length(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    return cgutils.create_struct_proxy(sig.args[0])(context, builder, value=args[0]).places


# ---- what Python hands over -----------------------------------------------------------------------------------------
def type_of(value: Any) -> Any:
    """Return the type of what is handed to a function: a number, a list, or a named tuple of lists."""
    if isinstance(value, np.ndarray):
        return List(_element_of(value.dtype), value.ndim)
    if isinstance(value, tuple):
        fields: tuple[str, ...] = value._fields  # type: ignore[attr-defined]  # a named tuple
        return Lists(tuple((name, type_of(each)) for name, each in zip(fields, value, strict=True)))
    return types.int64


@cache
def _element_of(dtype: Any) -> Any:
    return from_dtype(dtype)


class Arguments:
    """What is handed to a function: a number for each value, itself or the address of the table that describes lists.

    Values are kept as long as their addresses are; those that are the same as before keep theirs.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.tables: list[Any] = []
        self.numbers: tuple[int, ...] = ()

    def numbers_of(self, values: Sequence[Any]) -> tuple[int, ...]:
        """Return the numbers."""
        if len(values) == len(self.values) and all(map(operator.is_, values, self.values)):
            return self.numbers
        self.tables = [None if isinstance(one, int) else _table_of(one) for one in values]
        self.numbers = tuple(
            one if table is None else table.ctypes.data for one, table in zip(values, self.tables, strict=True)
        )
        self.values = list(values)
        return self.numbers


def _table_of(value: Any) -> Any:
    """Return the table that describes a list, or of those of a named tuple."""
    lists = value if isinstance(value, tuple) else (value,)
    known = [(one.__array_interface__["data"][0], len(one), one.shape[-1]) for one in lists]
    return np.array(known, np.int64)


def _opened(kinds: Sequence[Any]) -> Any:
    """Return what makes values of these types of the numbers that they are handed as."""

    @intrinsic
    def open_all(typing: Any, numbers: Any) -> Any:
        def code(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
            found = []
            for kind, number in zip(kinds, cgutils.unpack_tuple(builder, args[0]), strict=True):
                if isinstance(kind, Lists):
                    found.append(builder.inttoptr(number, context.get_value_type(kind)))
                elif isinstance(kind, List):
                    table = builder.inttoptr(number, ir.IntType(64).as_pointer())
                    found.append(_list_at(context, builder, kind, table, 0))
                else:
                    found.append(number)
            return context.make_tuple(builder, sig.return_type, found)

        return types.Tuple(kinds)(numbers), code

    return open_all


# ---- one unit -------------------------------------------------------------------------------------------------------
class Unit(JITCodeLibrary):
    """Functions that are optimised together, of which one alone is called from outside."""

    codegen = property(lambda self: self)

    def set_env(self, name: str, env: Any) -> None:
        """Say where the Python objects of a function are; only the one called from outside has any."""
        if self._is_called(name):
            self._codegen.set_env(name, env)  # type: ignore[attr-defined]

    def add_linking_library(self, library: Any) -> None:
        """Let functions of a library be called; those of this one can."""
        if library is not self:
            super().add_linking_library(library)

    def get_pointer_to_function(self, name: str) -> int:
        """Return where the machine code of a function is; 0 for those that aren't called from outside."""
        return super().get_pointer_to_function(name) if self._is_called(name) else 0

    def _is_called(self, name: str) -> bool:
        return self.name in name

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            inner = function.linkage == Linkage.external and not function.name.startswith("_ZN7cpython")
            if inner and not function.is_declaration:
                function.linkage = "internal"
        super()._optimize_final_module()


def _compiler_of(name: str) -> type[Compiler]:
    """Return a compiler that puts all functions into one unit."""
    units: list[Unit] = []

    class UnitCompiler(Compiler):
        def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
            if not units:
                units.append(Unit(target.codegen(), name))
                units[0].enable_object_caching()
            super().__init__(typing, target, units[0], *rest)

    return UnitCompiler


def compile_unit(
    functions: Mapping[FunctionType, Mapping[str, FunctionType]], name: str, kinds: Sequence[Any]
) -> Callable[[tuple[int, ...]], Any]:
    """Return the last of some functions, compiled with all that it calls; it takes one tuple of numbers.

    Parameters
    ----------
    functions : mapping
        Those that each calls, by name; each stands behind them.
    name : str
        On disk; its last eight characters are letters and digits, which no other has.
    kinds : sequence
        Types of what is handed over (:func:`type_of`).
    """
    compiler, made = _compiler_of(name[-8:]), dict[FunctionType, Any]()
    for function, callees in functions.items():
        known = {**function.__globals__, **{called: made[one] for called, one in callees.items()}}
        copy = FunctionType(function.__code__, known, function.__name__)
        made[function] = njit(**INNER, pipeline_class=compiler)(copy)
    entry = FunctionType(_entry.__code__, {"_go_on": made[function], "_open": _opened(kinds), "__name__": __name__})
    entry.__name__ = entry.__qualname__ = name
    found: Callable[[tuple[int, ...]], Any] = njit(**OUTER, pipeline_class=compiler)(entry)
    return found


_go_on: Any = None
_open: Any = None
"""In their places stand what was compiled, and what opens the numbers that it is handed."""


def _entry(numbers: Any) -> Any:
    """Go on in what was compiled: what is called from Python, and kept on disk."""
    return _go_on(*_open(numbers))
