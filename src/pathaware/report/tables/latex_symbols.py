"""Characters that LaTeX wants written in another way."""

from __future__ import annotations

import unicodedata


def _commands(pairs: str) -> dict[str, str]:
    """`"α alpha …"` → `{"α": "\\alpha", …}`"""
    words = pairs.split()
    return {sign: f"\\{name}" for sign, name in zip(words[::2], words[1::2], strict=True)}


GREEK = _commands("""
    α alpha β beta γ gamma δ delta ε varepsilon ζ zeta η eta θ theta ι iota κ kappa λ lambda μ mu µ mu
    ν nu ξ xi π pi ρ rho σ sigma τ tau υ upsilon φ varphi χ chi ψ psi ω omega
    Γ Gamma Δ Delta Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma Φ Phi Ψ Psi Ω Omega
""")
_SIGNS = _commands("""
    ± pm × times · cdot → to ← leftarrow ≤ leq ≥ geq ≈ approx ≠ neq ∞ infty ‖ Vert ∇ nabla √ surd ∂ partial
    ∑ sum
""")
MATHS = {**GREEK, **_SIGNS, "−": "-", "<": "<", ">": ">", "|": "|"}
"""What is set in math mode."""

TEXT = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "’": "'",
    # After the end of a row these two would be read as options of that end.
    "[": "{[}",
    "*": "{*}",
}
"""What is not."""


def _script(kind: str) -> dict[str, str]:
    """Every small raised or lowered sign of Unicode and what it is small for: `₀` → `0`."""
    found = {}
    for code in range(0x80, 0x2E00):
        mark, _, plain = unicodedata.decomposition(chr(code)).partition(" ")
        if mark == f"<{kind}>" and " " not in plain:
            letter = chr(int(plain, 16))
            found[chr(code)] = f"{GREEK[letter]} " if letter in GREEK else MATHS.get(letter, letter)
    return found


LOWERED, RAISED = _script("sub"), _script("super")
