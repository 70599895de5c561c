"""Words that documentation, docstrings and comments do not use."""

from __future__ import annotations

import re
from typing import Final

PLAIN: Final = {
    r"told|tells": "report, show, print",
    r"whoever|whom": "the noun: a process, a reader, a person",
    r"anew": "again",
    r"so many": "the number's name",
    r"goes by|go by": "use, depend on, follow",
    r"takes? in|taken in|let go|put up|puts? aside|stands? still|mend(?:s|ed)?|heed(?:s|ed)?": "a verb of the trade",
    r"(?:none|nothing|nobody) where": "if",
    r"where (?:it|there|that|this|these|no|none|one|some|all|several|nothing) (?:is|are|has|have|was|were)": "if",
}
"""Pattern of words, and what is written instead."""
FIRST: Final = re.compile(r"(?:What|Who|Whose|Whether|Of|That|How often)\b")
"""First word of a sentence that begins with a relative clause or a genitive."""

TEST_FIRST: Final = re.compile(
    r"(?:an?|the|what(?:ever)?|who|whose|whether|of|that|it|each|every|one|two|three|no|none|nothing|so|only|how"
    r"|if|where|there|all|some|in|on|with|without|by|from|after|before|until|as|at|to|is|are|also|any)\b"
)
"""First word of a test name that does not begin with its subject."""


def found(text: str) -> list[str]:
    """Return each use of a word of `PLAIN`, with its replacement."""
    return [
        f"{use}: {plain}"
        for words, plain in PLAIN.items()
        for use in re.findall(rf"\b(?:{words})\b", text, re.IGNORECASE)
    ]
