"""Fits to tables: batches, statistics, and when a column's values are gone through once."""

import pytest
import torch

from internals import (
    ColumnBins,
    GaussianProduct,
    ProductSettings,
    TableTask,
    Trainer,
    fit_table,
    set_row_statistics,
)
from kermix.errors import OptionError

SMALL = {"terms": 5, "width": 4, "epochs": 3, "learning_rate": 0.05}


def table(count: int, columns: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randn(count, columns, generator=torch.Generator().manual_seed(0))
    return rows.double(), (rows[:, 0] > 0).long()


def everything(count: int, members: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.arange(count), torch.arange(0))] * members


def task(count: int, **options) -> TableTask:
    rows, labels = table(count)
    settings = ProductSettings(model="rows", **{**SMALL, **options})
    bins = ColumnBins(rows.numpy())
    made = TableTask(rows, labels, 2, everything(count), settings, bins)
    Trainer(made, device="cpu")
    return made


@pytest.mark.parametrize(("count", "batch", "binned"), [(400, 40, False), (400, 200, True)])
def test_values_are_gone_through_once_where_they_are_fewer_than_the_rows(count, batch, binned):
    """Seen before: twice the time of going by rows, for wide tables of few rows."""
    assert (task(count, batch_size=batch)._grid is not None) == binned


def test_a_batch_of_one_row_is_refused():
    with pytest.raises(OptionError, match="batch_size=1 must be a whole number, at least 2"):
        ProductSettings(model="rows", batch_size=1)


@pytest.mark.parametrize("count", [2, 3, 5, 7, 33])
@pytest.mark.parametrize("batch_size", [2, 3, 4, 16])
def test_no_batch_has_one_row(count, batch_size):
    made = task(count, batch_size=batch_size)
    sizes = [len(made.batch(step)) for step in range(made.reports_every)]
    assert min(sizes) >= 2
    assert sum(sizes) == count
    assert max(sizes) <= max(batch_size, 3)


def network(**options) -> GaussianProduct:
    start = torch.Generator().manual_seed(3)
    return GaussianProduct([1, 2], 2, sizes=(4, 5), generator=start, **options)


@pytest.mark.parametrize("form", ["variational", "product", "signed"])
@pytest.mark.parametrize("members", [None, 3])
def test_statistics_of_rows_are_those_of_one_batch(form, members):
    options = {"form": form, "precision": "norm" if form == "variational" else "one"}
    ours = network(members=members, **options).double().eval()
    theirs = network(members=members, **options).double()
    rows = torch.randn(2500, 3, generator=torch.Generator().manual_seed(1)).double() + 3
    set_row_statistics(ours, rows)
    torch.testing.assert_close(ours(rows), theirs(rows), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("held", [0, 30])
@pytest.mark.parametrize("batch_size", [16, 100])
def test_statistics_at_the_end_are_those_of_the_training_rows(held, batch_size):
    """Seen before: those of weights that had moved on, where an epoch has few steps."""
    rows, labels = table(300)
    bins = ColumnBins(rows.numpy(), most=64)
    splits = [(torch.arange(300 - held), torch.arange(300 - held, 300))] * 2
    settings = ProductSettings(model="rows", **{**SMALL, "batch_size": batch_size})
    fitted = fit_table(rows, labels, 2, splits, settings, bins=bins, device="cpu").network
    values = bins.grid.inputs[torch.arange(2), bins.codes.long()].flatten(1).float()
    inputs = (values if batch_size > 64 else bins.inputs(rows.numpy()).float())[: 300 - held]
    answers = fitted(inputs)
    fitted.train()
    tolerance = 0.2 if held and batch_size > 64 else 5e-3  # bins count held-out rows as well
    torch.testing.assert_close(answers, fitted(inputs), rtol=0, atol=tolerance)


def test_statistics_of_a_fit_without_bins():
    rows, _ = table(300)
    rows = rows.float()
    settings = ProductSettings(model="rows", **SMALL, batch_size=150)
    fitted = fit_table(rows, rows, 2, everything(300), settings, device="cpu").network
    answers = fitted(rows)
    fitted.train()
    torch.testing.assert_close(answers, fitted(rows), rtol=0, atol=1e-4)
