"""Translate the equations of docstrings, which are written in Unicode, to TeX.

    >>> to_tex("θⱼ₊₁ = θⱼ − α ∇L_query(θⱼ)")
    '\\\\theta_{j+1} = \\\\theta_{j} - \\\\alpha \\\\nabla L_{\\\\mathrm{query}}(\\\\theta_{j})'

So an equation has one source, which reads well in a terminal and in the code. `_name` is an index and `^name`
an exponent, a word before a bracket is a function, and other words are text.
"""

from __future__ import annotations

import re
import unicodedata

_SYMBOLS = {
    "−": "-",
    "∘": r"\circ",
    "∇": r"\nabla",
    "∂": r"\partial",
    "·": r"\cdot",
    "×": r"\times",
    "⊗": r"\otimes",
    "⊕": r"\oplus",
    "∝": r"\propto",
    "≈": r"\approx",
    "~": r"\sim",
    "≥": r"\ge",
    "≤": r"\le",
    "≠": r"\ne",
    "∈": r"\in",
    "→": r"\to",
    "←": r"\leftarrow",
    "…": r"\dots",
    "∞": r"\infty",
    "‖": r"\Vert",
    "|": r"\vert",
    "½": r"\tfrac{1}{2}",
    "φ": r"\varphi",
    "ε": r"\varepsilon",
    "{": r"\{",
    "}": r"\}",
    "%": r"\%",
    "\u2003": r"\quad",
}
_FUNCTIONS = ("cos", "det", "exp", "ln", "log", "max", "min", "tanh")
_OPERATORS = ("diag", "sign")
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀᴸᵐᵖᵏⁿⁱʲ"
_WORDS = re.compile(r"[A-Za-z][a-z]+(?:[ -][a-z]{2,})*")
_CALLED = re.compile(r"([A-Za-z]+)(?=[(\[])")


def to_tex(text: str) -> str:
    """Translate one equation; an unknown sign is a `ValueError`."""
    spaced = re.sub(r"(?<=,) {2,}", " \u2003 ", text.strip())  # several equations in one line
    return " ".join(_Reader(spaced).read().split())


class _Reader:
    """Reads an equation from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def read(self) -> str:
        text = ""
        while self.at < len(self.text):
            part = self._next()
            if re.search(r"\\[A-Za-z]+$", text) and part[:1].isalpha():
                text += " "  # ends the name of a command
            text += part
        return text

    def _next(self) -> str:
        character = self.text[self.at]
        if character in "_^":
            self.at += 1
            return f"{character}{{{self._script()}}}"
        if character in "′'":
            self.at += 1
            return "'"
        if _is_lowered(character):
            return f"_{{{self._lowered()}}}"
        if character in "→←" and _is_lowered(self.text[self.at + 1 : self.at + 2]):
            self.at += 1
            return f"^{{{_SYMBOLS[character]}}}"  # the direction of a recurrent network
        if character in _RAISED:
            return f"^{{{self._raised()}}}"
        if character.isascii() and character.isalpha() and (word := self._word()):
            return word
        if self.text.startswith(":=", self.at):
            self.at += 2
            return ":="
        self.at += 1
        return self._sign(character)

    def _sign(self, character: str) -> str:
        if character == "Σ":  # with an index it is a sum, otherwise a matrix
            following = self.text[self.at : self.at + 1]
            return r"\sum" if following == "_" or _is_lowered(following) else r"\Sigma"
        if character in _SYMBOLS:
            return _SYMBOLS[character]
        if character.isascii():
            return character
        name = unicodedata.name(character, "")
        if found := re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", name):
            letter = found[2].lower()
            letter = letter.replace("lamda", "lambda")  # Unicode's spelling
            return f"\\{letter if found[1] == 'SMALL' else letter.capitalize()}"
        if found := re.fullmatch(r"LATIN (SMALL|CAPITAL) LETTER (\w) WITH CIRCUMFLEX", name):
            return f"\\hat{{{found[2].lower() if found[1] == 'SMALL' else found[2]}}}"
        raise ValueError(f"{character!r} in {self.text!r} has no translation to TeX")

    def _word(self) -> str:
        """A function before a bracket, or words in the middle of an equation; empty for a variable."""
        called = _CALLED.match(self.text, self.at)
        words = _WORDS.match(self.text, self.at)
        name = called[1] if called else words[0].split(" ")[0] if words else ""
        if len(name) < 2:
            return ""
        if called or name in (*_FUNCTIONS, *_OPERATORS) or _is_lowered(self._after(name)):
            self.at += len(name)
            return f"\\{name}" if name in _FUNCTIONS else f"\\operatorname{{{name}}}"
        if not words:
            return ""
        kept = words[0]
        for function in _FUNCTIONS:  # `mean of log p`: the text ends where mathematics begins
            kept = re.split(rf" {function}\b", kept)[0]
        if self._after(kept) in ("(", "["):
            kept = kept.rpartition(" ")[0]
        before = " " if self.text[self.at - 1 : self.at] == " " else ""
        after = " " if self._after(kept) == " " else ""
        self.at += len(kept)
        return rf"\text{{{before}{kept}{after}}}"

    def _after(self, words: str) -> str:
        end = self.at + len(words)
        return self.text[end : end + 1]

    def _script(self) -> str:
        """Read an index or exponent after `_` or `^`: a name, or one letter and its own marks."""
        if found := re.compile(r"[A-Za-z]{2,}").match(self.text, self.at):
            self.at = found.end()
            return rf"\mathrm{{{found[0]}}}"
        part = self._next()
        while self.at < len(self.text) and (self.text[self.at] in "′'" or self.text[self.at] in "₋₊"):
            part += self._lowered() if self.text[self.at] in "₋₊" else self._next()
        return part.strip()

    def _lowered(self) -> str:
        """A run of subscripts. After ₊ or ₋ a letter without a subscript form may follow: `θⱼ₋w`."""
        parts = ""
        while self.at < len(self.text) and _is_lowered(self.text[self.at]):
            parts += _plain(self.text[self.at])
            self.at += 1
        if parts.endswith(("+", "-")):
            parts += self.text[self.at]
            self.at += 1
        return parts

    def _raised(self) -> str:
        parts = ""
        while self.at < len(self.text) and self.text[self.at] in _RAISED:
            parts += _plain(self.text[self.at])
            self.at += 1
        return r"\top" if parts == "T" else parts


def _is_lowered(character: str) -> bool:
    name = unicodedata.name(character, "") if character else ""
    return name.startswith(("SUBSCRIPT", "LATIN SUBSCRIPT", "GREEK SUBSCRIPT"))


def _plain(character: str) -> str:
    return unicodedata.normalize("NFKC", character).replace("−", "-")
