"""Builds the native code with a sanitizer and runs its tests: `make sanitize`.

    python scripts/sanitize.py address    # AddressSanitizer and UBSan
    python scripts/sanitize.py thread     # ThreadSanitizer

The build has an environment of its own in build/, which takes everything but memplan
from the one this runs in. Python itself is not built for it, so the sanitizer's
library is loaded before all else; memory that Python never gives back is no finding.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Libraries that are not built for it, and share memory in ways that it cannot see.
SUPPRESSED = "race:libparquet\nrace:libarrow\nrace:torch::jit::Graph::~Graph\n"
TOOLS = ("scikit-build-core>=0.10", "nanobind>=2.2", "cmake", "ninja")
# Most of their time passes in C++; what Python does is slow under a sanitizer.
THREADED = (
    "tests/native",
    "tests/solving/test_anytime.py",
    "tests/solving/test_exact.py",
    "tests/compiling/test_requests.py",
    "tests/compiling/test_compiled_calls.py::test_calls_at_the_same_time",
    "tests/compiling/test_fused.py::"
    "test_calls_at_the_same_time_have_kernels_of_their_own",
)
NATIVE = (
    *THREADED,
    "tests/cuda",
    "tests/applying/test_sparse.py",
    "tests/solving/test_bestfit.py",
    "tests/blocking/test_blocking_cache.py",
    # The kernels, the tape that runs them, and the watch over a model's changes.
    "tests/fusing/test_convolution.py",
    "tests/fusing/test_depthwise.py",
    "tests/compiling/test_fused.py",
    "tests/compiling/test_changed_models.py",
)


@dataclass(frozen=True)
class Sanitizer:
    """What to build with, load first and set, and which tests to run.

    runs: a process of its own each; of a run the tests, and its own options.
    """

    flags: str
    libraries: tuple[str, ...]
    options: dict[str, str]
    runs: tuple[tuple[tuple[str, ...], str], ...]


SANITIZERS = {
    "address": Sanitizer(
        "address,undefined",
        # Without libstdc++ beside it, the first C++ exception would end the process.
        ("libasan.so", "libstdc++.so"),
        {
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        ((NATIVE, ""),),
    ),
    "thread": Sanitizer(
        "thread",
        ("libtsan.so",),
        {"TSAN_OPTIONS": "exitcode=66:suppressions={suppressions}"},
        (
            ((*THREADED, "tests/cuda/test_cuda_streams.py"), ""),
            # Each test has a library of its own there, whose locks are all taken when
            # one of them forks: more than can be watched for an order that deadlocks.
            (("tests/cuda",), ":detect_deadlocks=0"),
        ),
    ),
}


def build(sanitizer: Sanitizer, folder: Path) -> Path:
    """The interpreter of an environment in `folder` with memplan so built."""
    python = folder / "venv/bin/python"
    if not python.exists():
        venv.create(folder / "venv")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    packages = next((folder / "venv/lib").glob("python*/site-packages"))
    shared = [entry for entry in sys.path if entry.endswith("site-packages")]
    (packages / "shared.pth").write_text("\n".join(shared) + "\n", encoding="utf-8")
    if not (packages / "nanobind").exists():
        subprocess.run([*pip, "--ignore-installed", *TOOLS], check=True)
    settings = {
        "cmake.define.MEMPLAN_SANITIZE": sanitizer.flags,
        "cmake.build-type": "RelWithDebInfo",
        "install.strip": "false",
        "build-dir": str(folder / "cmake"),  # kept, so that only changes are built
    }
    command = [*pip, "--no-deps", "--ignore-installed", "--no-build-isolation"]
    command += [f"--config-settings={key}={value}" for key, value in settings.items()]
    subprocess.run([*command, "--editable", ROOT], check=True)
    return python


def located(library: str) -> str:
    """The path of one of the compiler's own libraries."""
    compiler = os.environ.get("CXX", "c++")
    done = subprocess.run(
        [compiler, f"-print-file-name={library}"],
        capture_output=True,
        text=True,
        check=True,
    )
    path = done.stdout.strip()
    if not Path(path).is_absolute():
        sys.exit(f"{compiler} has no {library}; install the compiler's sanitizers")
    return path


def main(arguments: list[str] | None = None) -> int:
    """pytest's exit code, or 1 if a sanitizer found something that no test saw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sanitizer", choices=SANITIZERS)
    parser.add_argument("tests", nargs="*", help="instead of all that have native code")
    asked = parser.parse_args(arguments)
    sanitizer = SANITIZERS[asked.sanitizer]
    folder = ROOT / "build" / asked.sanitizer
    python = build(sanitizer, folder)

    findings = folder / "findings"
    findings.mkdir(exist_ok=True)
    for old in findings.iterdir():
        old.unlink()
    suppressions = folder / "suppressions"
    suppressions.write_text(SUPPRESSED, encoding="utf-8")
    code = 0
    for tests, own in [((*asked.tests,), "")] if asked.tests else sanitizer.runs:
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(map(located, sanitizer.libraries)),
        }
        for name, options in sanitizer.options.items():
            environment[name] = options.format(suppressions=suppressions)
            environment[name] += f"{own}:log_path={findings}/found"
        # Fixed addresses: ThreadSanitizer's own memory has its place among them.
        command = ["setarch", "-R", python, "-m", "pytest", "-m", "not soak", *tests]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        code = code or done.returncode
    for found in sorted(findings.iterdir()):
        print(f"\n{found}:\n{found.read_text(encoding='utf-8', errors='replace')}")
        code = code or 1
    return code


if __name__ == "__main__":
    sys.exit(main())
