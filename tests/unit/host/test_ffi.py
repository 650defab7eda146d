"""host.ffi: the part of ctypes that we use means what ctypes means, and the C library is called with it."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import threading

import pytest

from membrane.host import ffi

TYPES = ("c_char", "c_int", "c_uint", "c_uint32", "c_long", "c_ulong", "c_uint64", "c_size_t", "c_ssize_t", "c_void_p")


@pytest.mark.parametrize("name", TYPES)
def test_a_type_has_the_size_and_the_sign_of_the_one_of_ctypes(name: str) -> None:
    ours, theirs = getattr(ffi, name), getattr(ctypes, name)
    assert ffi.sizeof(ours) == ctypes.sizeof(theirs)
    if name == "c_char":
        assert ours(b"\xff").value == theirs(b"\xff").value
    else:
        assert ours(-1).value == theirs(-1).value


def test_a_call_gives_its_result_and_its_errno() -> None:
    libc = ffi.PyDLL()
    assert libc.getpid() == os.getpid()
    assert libc.close(-1) == -1
    assert ffi.get_errno() == errno.EBADF
    assert libc.close is libc.close, "looked up once"
    with pytest.raises(AttributeError):
        _ = libc.no_such_function_of_the_c_library


def test_errno_is_the_one_of_the_thread_that_called() -> None:
    libc = ffi.PyDLL()
    libc.close(-1)
    other = threading.Thread(target=lambda: libc.unlink(b"/nowhere/at-all"))
    other.start()
    other.join()
    assert ffi.get_errno() == errno.EBADF


def test_a_buffer_is_as_large_as_was_asked_and_ends_in_zeros() -> None:
    buffer = ffi.create_string_buffer(b"ab", 5)
    assert bytes(buffer) == b"ab\0\0\0"
    buffer[4] = b"z"
    assert bytes(buffer) == b"ab\0\0z"
    with pytest.raises(ValueError):
        ffi.create_string_buffer(b"abc", 2)


def test_other_threads_go_on_beside_a_long_call() -> None:
    """It waits for what the first thread writes once it is begun, which needs the interpreter's lock."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            sys.setswitchinterval(100)  # no switch between the event and the call
            reading, writing = os.pipe()
            begun, read = threading.Event(), ffi.PyDLL().long("read")
            buffer = ffi.create_string_buffer(b"", 1)

            def wait() -> None:
                begun.set()
                read(reading, buffer, 1)

            other = threading.Thread(target=wait)
            other.start()
            begun.wait()
            os.write(writing, b"x")
            other.join()
            os._exit(7 if bytes(buffer) == b"x" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
