"""The command `lake` in a task: its progress in the task's log, and what its exit codes mean to Airflow."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from airflow.sdk import RetryDecision, RetryPolicy

TRY_AGAIN: Final = 75
"""The exit code of `lake` where somebody else holds a lease, or storage or the cluster does not answer."""

WRONG: Final = 2
"""Its exit code where a declaration or a parameter is wrong."""

_log: Final = logging.getLogger("lake")


class OnlyUnavailable(RetryPolicy):
    """Tries `lake` again after exit code 75 alone: after any other a retry would not help."""

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        """See RetryPolicy."""
        if isinstance(exception, SystemExit) and exception.code != TRY_AGAIN:
            return RetryDecision.fail(f"exit code {exception.code}: a retry would not help")
        return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        """See RetryPolicy."""
        return {}


def command(lake: str | Path | None) -> list[str]:
    """The words that start `lake`: as given, else that of the Python at work."""
    return [str(lake or Path(sys.executable).with_name("lake"))]


def run(words: Sequence[str], environment: Mapping[str, str], partly: str = "") -> Any:
    """Return the answer of a command of `lake`. Its stderr goes to the task's log, line by line.

    A command that fails ends the task with its exit code, which Airflow reports in one line, without a stack trace. An
    answer that it printed before is logged, such as the rows that differ for `lake verify`. One that lists failures
    under the name `partly` is returned nevertheless.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as answer:
        code = _logged(words, {**os.environ, **environment}, answer)
        answer.seek(0)
        text = answer.read()
    if code == 0:
        return json.loads(text)
    if partly and code > 0 and partly in _keys(text):
        return json.loads(text)
    if text and not _is_error(text):
        _log.info(text)
    if code < 0:
        fail(f"{_shown(words)} was killed by {signal.Signals(-code).name}", "see how much memory the worker has")
    raise SystemExit(code)


def fail(what: str, fix: str) -> NoReturn:
    """Fails the task at once with two lines in its log."""
    _log.error("%s", what)
    _log.error("  fix: %s", fix)
    raise SystemExit(WRONG)


def warn(what: str, fix: str) -> None:
    """Log, in two lines, a fault that stops nothing."""
    _log.warning("%s", what)
    _log.warning("  fix: %s", fix)


def _logged(words: Sequence[str], environment: Mapping[str, str], answer: Any) -> int:
    """Runs a command, its stdout into `answer`. Returns its exit code, negative where a signal ended it."""
    try:
        process = subprocess.Popen(
            words, env=dict(environment), stdout=answer, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        fail(f"{words[0]} cannot be started: {error.strerror}", 'name the command: dags(…, lake="/path/to/bin/lake")')
    with process:
        try:
            for level, line in levels(process.stderr or ()):
                _log.log(level, "%s", line)
            return process.wait()
        except BaseException:  # the task is being ended: so is its command, which leaves nothing half done
            process.terminate()
            raise


def levels(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Each line with its level of logging: a fault and what belongs to it are errors, the rest is progress."""
    level = logging.INFO
    for line in lines:
        if line.startswith("lake: "):
            level = logging.ERROR
        elif not line.startswith(("  ", "- ")):
            level = logging.WARNING if line.startswith("warning ") else logging.INFO
        yield level, line.rstrip("\n")


def _is_error(text: str) -> bool:
    """Return whether an answer is only the fault, which stderr has reported."""
    return _keys(text) == {"error"}


def _keys(text: str) -> set[str]:
    """Return the names in an answer; none if it is not a JSON object, or is cut off."""
    try:
        answer = json.loads(text)
    except ValueError:
        return set()
    return set(answer) if isinstance(answer, dict) else set()


def _shown(words: Sequence[str]) -> str:
    return f"`lake {words[1]}`"
