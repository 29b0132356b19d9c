"""Which texts can name a class."""

from __future__ import annotations

import unicodedata

from pathaware.serve.refusals import Refused

# Invisible, but part of words in Persian and Hindi, and of some emoji.
_JOINERS = "\u200c\u200d"


def checked_label(text: str, longest: int) -> str:
    """The label as it is kept: trimmed and in Unicode's composed form, so that what looks equal is equal."""
    if len(text) > 8 * longest:  # nothing below has to look at a long text
        raise Refused(422, f"label: more than {longest} characters")
    label = unicodedata.normalize("NFC", text.strip())
    if not label:
        raise Refused(422, "label: empty; a class needs a name")
    if len(label) > longest:
        raise Refused(422, f"label: more than {longest} characters")
    if any(not _allowed(c) for c in label):
        raise Refused(422, "label: control characters are not allowed")
    if all(unicodedata.category(c)[0] in "CZM" for c in label):
        raise Refused(422, "label: nothing in it can be seen")
    if label in (".", ".."):  # no address can end in these: they mean "here" and "one up"
        raise Refused(422, f"label: {label!r} cannot be a name")
    return label


def _allowed(character: str) -> bool:
    """Neither a control character, nor one that turns the direction of text around, nor half of one."""
    kind = unicodedata.category(character)
    return character in _JOINERS or (kind[0] != "C" and kind not in ("Zl", "Zp") and character != "\ufffd")
