"""What a test has made, and may rely on."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def there(found: T | None) -> T:
    """What was looked for, and must be there."""
    assert found is not None
    return found
