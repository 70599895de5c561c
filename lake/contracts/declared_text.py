"""Text and JSON of declared files. JSON keeps its digits: a number that a float would change is a Decimal."""

from __future__ import annotations

import json
from bisect import bisect_left
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

from lake.contracts import literals
from lake.errors import DeclarationError


class _FaultyPart(ValueError):
    def __init__(self, part: str, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.part, self.what, self.fix = part, what, fix


def files_in(folder: Path, extension: str) -> list[Path]:
    """Return the files of a folder, sorted; none if it is missing. Raises DeclarationError if it cannot be listed."""
    try:
        return sorted(file for file in folder.iterdir() if file.name.endswith(extension))
    except FileNotFoundError:
        return []
    except OSError as error:
        what = f"the folder of declarations cannot be read: {error.strerror}"
        raise DeclarationError(what, where=str(folder), fix="make it a folder that this user may read") from None


def declared_text(file: Path, noun: str, *, where: str, fix: str) -> str:
    """Read a file in UTF-8. `noun` names its content in a message, such as "the contract"."""
    try:
        return file.read_text("utf-8")
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 at byte {error.start}"
    raise DeclarationError(f"{noun} cannot be read: {reason}", where=where, fix=fix)


def parse_json(text: str, *, where: str, fix: str = "", line: int = 1) -> Any:
    """Raises DeclarationError with the line of the fault. `line` is that of the beginning of `text` in its file."""
    try:
        return decoder().decode(text)
    except json.JSONDecodeError as error:
        what, line = f"not valid JSON: {error.msg}", line + error.lineno - 1
    except RecursionError:
        what = "not valid JSON: nested too deeply"
    except _FaultyPart as fault:
        what, fix = fault.what, fault.fix or fix
        end = _end_of_fault(text)
        at = text.rfind(fault.part, 0, end)
        line += text.count("\n", 0, end if at < 0 else at)
    raise DeclarationError(what, where=f"{where}:{line}", fix=fix)


def _end_of_fault(text: str) -> int:
    """Return the length of the shortest beginning of `text` that has a faulty part."""

    def has_fault(length: int) -> bool:
        with suppress(json.JSONDecodeError):
            try:
                decoder().decode(text[:length])
            except _FaultyPart:
                return True
        return False

    return bisect_left(range(len(text)), True, key=has_fault)


def json_text(value: Any) -> str:
    """Return what `parse_json` reads as `value`: `json.dumps`, and decimals with all their digits."""
    match value:
        case Decimal():
            return str(value)
        case list():
            return f"[{', '.join(map(json_text, value))}]"
        case dict():
            return f"{{{', '.join(f'{json.dumps(name)}: {json_text(member)}' for name, member in value.items())}}}"
    return json.dumps(value)


def _unique_members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    for name, value in members:
        if name in by_name:
            raise _FaultyPart(json.dumps(name), f"{json.dumps(name)} occurs twice", "keep only one of them")
        by_name[name] = value
    return by_name


def _number(text: str) -> int | float | Decimal:
    if len(text) > literals.LONGEST or not literals.NUMBER.fullmatch(text):
        raise _FaultyPart(text, f"not valid JSON: a number of more than {literals.LONGEST:,} digits")
    if text.removeprefix("-").isdigit():
        return int(text)
    number, written = float(text), Decimal(text)
    return number if Decimal(repr(number)) == written else written


def _reject_constant(text: str) -> NoReturn:
    raise _FaultyPart(text, f"not valid JSON: {text} is no number of JSON")


def decoder() -> json.JSONDecoder:
    """Return a new one each time: this module goes to Spark's workers with a contract, and a decoder cannot."""
    return json.JSONDecoder(
        object_pairs_hook=_unique_members,
        parse_int=_number,
        parse_float=_number,
        parse_constant=_reject_constant,
    )
