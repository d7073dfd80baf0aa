"""The shim refuses, in one line, a c10 whose binary interface it does not know."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# A stand-in for libc10.so; macros change one thing each.
FAKE = r"""
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace c10 {
struct DataPtr {
  void* data = nullptr;
  std::unique_ptr<void, void (*)(void*)> context{nullptr, nullptr};
  int8_t device_type = DEVICE;
  int8_t device_index = -1;
};
struct Allocator {
  virtual ~Allocator() = default;
  virtual DataPtr allocate(size_t n) = 0;
  virtual bool is_simple_data_ptr(const DataPtr& p) const { return true; }
  virtual void (*raw_deleter() const)(void*) = 0;
  virtual void copy_data(void* to, const void* from, size_t n) const { COPY; }
#ifdef EXTRA
  virtual void one_more() {}
#endif
};
void other_free(void* p) { std::free(p); }
struct Fake final : Allocator {
  DataPtr allocate(size_t n) override {
    BODY;
    DataPtr block;
    block.data = std::malloc(n);
    block.context = {CONTEXT, DELETER};
    return block;
  }
  void (*raw_deleter() const)(void*) override { return std::free; }
};
Fake fake;
Allocator* current = &fake;
__attribute__((visibility("default"))) Allocator* GetCPUAllocator() { return current; }
#ifndef NO_SETTER
__attribute__((visibility("default"))) void SetCPUAllocator(Allocator* a, uint8_t p) {
  if (p >= PRIORITY) current = a;
}
#endif
}
"""
DEFAULTS = {
    "DEVICE": "0",
    "COPY": "std::memcpy(to, from, n)",
    "BODY": "",
    "CONTEXT": "block.data",
    "DELETER": "std::free",
    "PRIORITY": "0",
}


def answers(tmp_path: Path, **macros: str) -> list[str]:
    """What the shim's check and its installation say of a fake c10 with `macros`."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, library = tmp_path / "fake.cpp", tmp_path / "libfake.so"
    source.write_text(FAKE)
    flags = [f"-D{name}={value}" for name, value in {**DEFAULTS, **macros}.items()]
    subprocess.run(
        [compiler, "-std=c++17", "-shared", "-fPIC", *flags, source, "-o", library],
        check=True,
        capture_output=True,
    )
    code = (
        "import ctypes, sys\n"
        "from memplan.native import _alloc\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "print(_alloc.check(sys.argv[1]))\n"
        "print(_alloc.install(sys.argv[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, library],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_known_interface_is_accepted(tmp_path: Path) -> None:
    assert answers(tmp_path) == ["", ""]


@pytest.mark.parametrize(
    ("macros", "reason"),
    [
        ({"EXTRA": "1"}, "the allocator has 9 vtable entries, not 8"),
        ({"NO_SETTER": "1"}, "c10::SetCPUAllocator is missing"),
        ({"BODY": "return {}"}, "a request of 64 bytes returned no memory"),
        ({"CONTEXT": "std::malloc(n)"}, "a block's context is not its address"),
        ({"DELETER": "other_free"}, "a block's deleter is not the allocator's own"),
        ({"DEVICE": "1"}, "a block is not on the CPU"),
        ({"COPY": "(void)n"}, "a block cloned through the shim differs"),
        ({"BODY": "std::abort()"}, "a test request crashed (Aborted)"),
        (
            {"BODY": "*(volatile int*)8=1"},
            "a test request crashed (Segmentation fault)",
        ),
    ],
)
def test_a_foreign_interface_is_refused(
    tmp_path: Path, macros: dict[str, str], reason: str
) -> None:
    assert answers(tmp_path, **macros) == [reason] * 2


def test_another_allocator_with_a_higher_priority_is_left_in_force(
    tmp_path: Path,
) -> None:
    said = "another CPU allocator is installed, with a higher priority"
    assert answers(tmp_path, PRIORITY="2")[1] == said


def test_a_library_that_is_not_loaded_is_refused() -> None:
    from memplan.native import _alloc

    assert _alloc.check("/no/such/libc10.so") == "/no/such/libc10.so is not loaded"


def test_without_torch_recording_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('started')")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "sys.argv = ['memplan', 'record', 'script.py']\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import memplan.cli; memplan.cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert "pip install 'memplan[torch]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "started" not in done.stdout
