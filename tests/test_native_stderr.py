"""Standard error of native code: panics of Rust are removed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow

PANIC = (
    "\nthread 'tokio-rt-worker' (28145) panicked at /build/object_store-0.13.2/src/buffered.rs:369:41:\n"
    "Already shut down\n"
)
BACKTRACE = "stack backtrace:\n   0: rust_begin_unwind\n             at /rustc/std/src/panicking.rs:1:2\n"
NOTE = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n"


def printed(*parts: str, then: str = "") -> str:
    """Return standard error of a process whose native code prints parts, one write each."""
    program = f"""
        import os, sys
        from lake.cli.stderr import without_panics
        with without_panics():
            for part in {parts!r}:
                os.write(2, part.encode())
            {then}
        print("after", file=sys.stderr)
    """
    line = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=os.environ)
    return done.stderr


@pytest.mark.parametrize("panic", [PANIC, PANIC + NOTE, PANIC + BACKTRACE + NOTE, PANIC + PANIC + NOTE])
@pytest.mark.parametrize("step", [1000, 7])
def test_stderr_filter_removes_panics_only(panic: str, step: int) -> None:
    text = f"before\n\n{panic}lake: disk full\n  fix: free some\nthreads\n\nno end"
    parts = [text[first : first + step] for first in range(0, len(text), step)]
    assert printed(*parts) == "before\n\nlake: disk full\n  fix: free some\nthreads\n\nno endafter\n"


def test_stderr_filter_passes_output_of_python_and_child_processes() -> None:
    child = "import subprocess; subprocess.run(['sh', '-c', 'echo child >&2']); print('python', file=sys.stderr)"
    assert sorted(printed("native\n", then=child).splitlines()) == ["after", "child", "native", "python"]


def test_stderr_filter_passes_output_of_any_size() -> None:
    assert printed(then="os.write(2, b'x' * 1_000_000)") == "x" * 1_000_000 + "after\n"
