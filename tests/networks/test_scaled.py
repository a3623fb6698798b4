"""Location and scale of columns: what is a spread and what is rounding, and units of any size."""

import pytest
import torch

from internals import MixtureTable, ScaledModel, Scaler, column_moments
from kermix.errors import SampleError


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_rounding_is_no_spread(dtype):
    eps = torch.finfo(dtype).eps
    steps = torch.tensor([0.0, 1.0, -1.0, 2.0], dtype=dtype)
    data = torch.stack([1 + eps * steps, 1 + 100 * eps * steps, 0.1 + 0 * steps], 1)
    mean, deviation = column_moments(data)
    assert deviation[0, 0] == deviation[0, 2] == 0
    exact = (data[:, 1].double() - 1).std(correction=0)
    torch.testing.assert_close(deviation[0, 1], exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(mean, data.double().mean(0, keepdim=True))


def test_a_common_scale_is_one_number_for_all_columns():
    data = 1e200 * torch.tensor([[0.0, 7.0, 3.0], [6.0, 7.0, 5.0]], dtype=torch.float64)
    scale = Scaler(data, common=True).scale
    expected = torch.full((1, 3), 1e200 * (10 / 3) ** 0.5, dtype=torch.float64)
    torch.testing.assert_close(scale, expected)


def test_data_whose_variance_is_no_number_are_refused():
    rows = 1e200 * torch.randn(50, 2, generator=torch.Generator().manual_seed(0)).double()
    table = MixtureTable(2, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(SampleError, match=r"deviations of .*e\+200"):
        ScaledModel(table, Scaler(rows))
    with pytest.raises(SampleError, match="multiply or divide"):
        ScaledModel(table, Scaler(rows / 1e300 / 1e100))
