"""The part of ctypes that we use, from the C module behind it.

Theory of operation
-------------------
``import ctypes`` makes types, caches and loaders for every platform and costs more than all system calls of a start.
Names and meanings here are those of ctypes; only what ``membrane.host`` uses is here.  Code that is not on the way
of a start may use ctypes itself: both are made of the same types.
"""

from __future__ import annotations

from _ctypes import (
    FUNCFLAG_CDECL,
    FUNCFLAG_PYTHONAPI,
    FUNCFLAG_USE_ERRNO,
    RTLD_LOCAL,
    Array,
    CFuncPtr,
    _SimpleCData,
    addressof,
    byref,
    dlopen,
    get_errno,
    sizeof,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctypes import (
        c_char,
        c_int,
        c_long,
        c_size_t,
        c_ssize_t,
        c_uint,
        c_uint32,
        c_uint64,
        c_ulong,
        c_void_p,
    )
    from typing import Any
else:

    def _simple(name, code):
        return type(_SimpleCData)(name, (_SimpleCData,), {"_type_": code, "__module__": __name__})

    c_char = _simple("c_char", "c")
    c_int = _simple("c_int", "i")
    c_uint = c_uint32 = _simple("c_uint", "I")
    c_long = c_ssize_t = _simple("c_long", "l")  # LP64, as every machine in the tables of ``syscalls``
    c_ulong = c_uint64 = c_size_t = _simple("c_ulong", "L")
    c_void_p = _simple("c_void_p", "P")

__all__ = [
    "Array",
    "PyDLL",
    "addressof",
    "byref",
    "c_char",
    "c_int",
    "c_long",
    "c_size_t",
    "c_ssize_t",
    "c_uint",
    "c_uint32",
    "c_uint64",
    "c_ulong",
    "c_void_p",
    "create_string_buffer",
    "get_errno",
    "sizeof",
]


class PyDLL:
    """The C library of this process; a call keeps the interpreter lock and saves errno for ``get_errno``."""

    class _Function(CFuncPtr):
        _flags_ = FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI | FUNCFLAG_USE_ERRNO
        _restype_ = c_int

    class _Long(CFuncPtr):
        """For a call that takes long: other threads go on meanwhile."""

        _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
        _restype_ = c_int

    def __init__(self) -> None:
        self._handle = dlopen(None, RTLD_LOCAL)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        function = self._Function((name, self))  # type: ignore[arg-type]
        setattr(self, name, function)
        return function

    def long(self, name: str) -> Any:
        """The function ``name``, without the interpreter lock."""
        return self._Long((name, self))  # type: ignore[arg-type]


def create_string_buffer(data: bytes, size: int) -> Array[c_char]:
    """A mutable buffer of ``size`` bytes that begins with ``data``."""
    buffer = (c_char * size)()
    buffer.raw = data
    return buffer
