"""Docstrings are Markdown, as the site and editors show them, and nothing of another dialect."""

import re

import pytest

from pages import ROOT

FOREIGN = {
    "role": r":(?:func|class|meth|attr|data|mod|exc|obj|math|ref):`",
    "directive": r"^\s*\.\. [a-z-]+::",
    "double backticks": r"(?<!`)``(?!`)",
    "field": r"^\s*:(?:param|type|returns?|rtype|raises)\b[^:]*:",
    "NumPy section": r"^\s*(?:Parameters|Returns|Raises|Notes|Examples?|See Also)\n\s*-{3,}$",
    "drawn table": r"^\s*={3,}(?:\s+={3,})+$",
}
WRITTEN = {
    "role": "See :func:`~kermix.fit`.",
    "directive": "    .. math:: x^2",
    "double backticks": "``x`` is",
    "field": "    :param x: Points.",
    "NumPy section": "    Parameters\n    ----------\n    x",
    "drawn table": "    ===== =====\n    a     b",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_each_foreign_dialect_is_recognized(kind):
    assert re.search(FOREIGN[kind], WRITTEN[kind], re.M)
    assert not re.search(FOREIGN[kind], "```python\n| a | `b` $x$ |\n| --- |\n``` --- ===", re.M)


@pytest.mark.parametrize("folder", ["src", "benchmarks", "scripts", "examples"])
def test_docstrings_are_markdown(folder):
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text()
        for kind, pattern in FOREIGN.items():
            wrong += [
                f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, m.start()) + 1}: {kind}"
                for m in re.finditer(pattern, text, re.M)
            ]
    assert not wrong, "Markdown, please: `name`, $formula$, | table |:\n" + "\n".join(wrong)
