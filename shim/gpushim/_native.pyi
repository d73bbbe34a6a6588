# What cffi makes of cffi_src/native.cdef.h; tests/test_native.py holds the two together.
from typing import Any

class FFI:
    CData: type
    def new(self, cdecl: str, init: object = ...) -> Any: ...
    def string(self, cdata: Any) -> bytes: ...
    def buffer(self, cdata: Any, size: int = ...) -> Any: ...

class Lib:
    GS_FILE_SIZE: int
    GS_UUID_SIZE: int
    GS_NVML_DONE: int
    GS_NVML_LOAD: int
    GS_NVML_SYMBOL: int
    GS_NVML_INIT: int
    GS_NVML_COUNT: int
    GS_LIVE_PREPARE: int
    GS_LIVE_ENTER: int
    GS_LIVE_ROOT: int
    GS_LIVE_ITEM: int
    MOUNT_ATTR_RDONLY: int
    MOUNT_ATTR_NOSUID: int
    MOUNT_ATTR_NODEV: int
    MOUNT_ATTR_NOEXEC: int
    def gs_stat_many(self, paths: bytes, count: int, out: Any) -> None: ...
    def gs_open_in_root(self, root: int, path: bytes, flags: int, mode: int) -> int: ...
    def gs_capabilities(self, directory: bytes, out: Any, count: int) -> int: ...
    def gs_read_files(
        self, paths: bytes, count: int, patience_ms: int, deadline_ms: int, out: Any
    ) -> int: ...
    def gs_nvml(self, library: bytes, deadline_ms: int, out: Any, count: int, status: Any) -> int: ...
    def gs_give(self, place: Any, items: Any, count: int, ms: int, stage: Any) -> int: ...

ffi: FFI
lib: Lib
