"""What compare, evaluate and drift return shows its answer first, wherever it is looked at."""

import html

import numpy as np
import pandas as pd
import pytest

import kermix as km


def table(rows, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({f"<x{k}>": rng.normal(size=rows) + shift for k in range(14)})


def of_compare():
    return km.compare(table(80), table(80, 1.5, 1), permutations=39)


def of_evaluate():
    return km.evaluate(table(80), table(80, 1.5, 1), permutations=39, rank=30)


def of_drift():
    months = [table(40, k == 20, k).assign(month=f"m{k}") for k in range(21)]
    return km.drift_over_time(pd.concat(months), "month")


@pytest.mark.parametrize("of", [of_compare, of_evaluate, of_drift])
def test_the_answer_is_first_in_text_in_a_prompt_and_in_a_notebook(of):
    found = of()
    answer = found.summary().splitlines()[0]
    assert found.summary() == str(found)
    assert answer in " ".join(repr(found).split())
    assert repr(found).startswith(answer[:60])
    assert len(repr(found).splitlines()) <= 24
    shown = found._repr_html_()
    assert shown.startswith(f"<p><strong>{html.escape(answer)}</strong></p>\n<table>")
    assert html.escape("<x") in shown or of is of_evaluate
    assert "<x" not in shown
    assert found.different
    assert found.pvalue <= 0.05
