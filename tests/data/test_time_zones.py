"""Instants in several zones are the same times; times without a zone are something else."""

import itertools

import numpy as np
import pandas as pd
import pytest

import kermix as km
from commands import kermix
from kermix.errors import OptionError, SchemaError

TIMES = pd.date_range("2024-01-01", periods=60, freq="6h")
ZONES = ("Asia/Tokyo", "UTC", "America/New_York")
UNITS = ("s", "us", "ns")


def table(zone=None, unit="us", shift=0):
    times = pd.Series(TIMES + pd.Timedelta(hours=shift)).dt.as_unit(unit)
    if zone is not None:
        times = times.dt.tz_localize("UTC").dt.tz_convert(zone)
    return pd.DataFrame({"t": times, "v": [k * 0.25 for k in range(60)]})


@pytest.mark.parametrize(("first", "second"), [*itertools.product(ZONES, ZONES)])
def test_zones_do_not_change_an_instant(first, second):
    schema = km.Schema.infer(table(first))
    own, other = schema.encode(table(first)), schema.encode(table(second))
    assert (own.codes == other.codes).all()
    assert (own.values == other.values).all()
    back = schema.decode(other)["t"]
    assert str(back.dt.tz) == first
    assert (back == table(second)["t"]).all()
    found = km.compare(table(first), table(second), permutations=20, jackknife_groups=0)
    assert all(c.pvalue == 1 for c in found.verdict.columns)


@pytest.mark.parametrize(("first", "second"), [*itertools.product(UNITS, UNITS)])
def test_pooled_times_have_the_zone_of_the_first_and_the_finest_unit(first, second):
    pooled = km.Schema.infer(table("Asia/Tokyo", first), table("UTC", second))
    finest = max(first, second, key=UNITS.index)
    assert pooled["t"].type.arrow == f"timestamp[{finest}, tz=Asia/Tokyo]"


@pytest.mark.parametrize("zone", ZONES)
def test_times_without_a_zone_are_not_mixed_with_instants(zone):
    naive, zoned = table(), table(zone)
    for known, new in ((naive, zoned), (zoned, naive)):
        schema = km.Schema.infer(known)
        with pytest.raises(SchemaError, match=r"column t: times have a zone .*tz_localize"):
            schema.encode(new)
        with pytest.raises(SchemaError, match=rf"Column t: times have a zone \({zone}\)"):
            km.Schema.infer(known, new)
        with pytest.raises(SchemaError, match=r"Column t: times have a zone"):
            km.compare(known, new, permutations=20, jackknife_groups=0, strict=True)
        found = km.compare(known, new, permutations=20, jackknife_groups=0)
        assert "t" not in found.columns
        assert "t (timestamp[" in found.reading_notes[0]
    km.Schema.infer(naive).encode(zoned.assign(t=zoned["t"].dt.tz_localize(None)))


def irregular(zone, unit="us"):
    """Times that do not follow from the other column, nor repeat."""
    rng = np.random.default_rng(0)
    rows = table(zone, unit).assign(v=rng.normal(size=60))
    return rows.assign(t=rows["t"] + pd.to_timedelta(rng.integers(0, 9000, 60), "s"))


@pytest.fixture(scope="module", params=["s", "ns"])
def given_v(request):
    """The distribution of a time of Tokyo."""
    rows = irregular("Asia/Tokyo", request.param)
    model = km.TableModel(steps=2, width=8, blocks=1).fit(rows)
    return model.conditional("t", given={"v": 0.5})


def test_quantiles_are_in_the_zone_of_the_column(given_v):
    (median,), ends = given_v.quantile(0.5), given_v.interval(0.9)
    for time in (median, *(end[0] for end in ends)):
        assert time.utcoffset() == pd.Timedelta(hours=9)
    assert ends[0][0] < median < ends[1][0]
    assert pd.Timestamp("2024-01-01", tz="UTC") < median < pd.Timestamp("2024-01-17", tz="UTC")
    assert given_v.cdf(median) == pytest.approx(0.5, abs=1e-3)


def test_a_time_without_a_zone_is_one_of_the_zone_of_the_column(given_v):
    there = pd.Timestamp("2024-01-05 15:00", tz="Asia/Tokyo")
    expected = given_v.cdf(there)
    here = there.tz_localize(None)
    same_times = (
        here, here.isoformat(), str(here), here.to_datetime64(), here.to_pydatetime(), [here],
        np.array([here]), there.isoformat(), there.tz_convert("UTC"),
    )  # fmt: skip
    for same in same_times:
        assert given_v.cdf(same) == expected, same
    assert given_v.cdf("2024-01-05") == given_v.cdf(pd.Timestamp("2024-01-05", tz="Asia/Tokyo"))
    assert given_v.cdf(here - pd.Timedelta(hours=9)) < expected


def test_an_hour_that_a_zone_has_twice_or_never_is_refused():
    rows = irregular("Europe/Berlin")
    found = km.TableModel(steps=2, width=8, blocks=1).fit(rows).conditional("t", given={"v": 0.5})
    for time in ("2024-03-31 02:30", "2024-10-27 02:30"):
        with pytest.raises(OptionError, match="Europe/Berlin"):
            found.cdf(time)


@pytest.mark.parametrize("written", ["2024-01-05", "2024-01-05 12:00", "2024-01-05T12:00:00"])
def test_a_time_set_for_samples_is_in_the_zone_of_the_column(written, tmp_path):
    rows = tmp_path / "rows.parquet"
    irregular("Asia/Tokyo").to_parquet(rows)
    run, out = tmp_path / "run", tmp_path / "new.parquet"
    kermix("fit", rows, "--model", "table", "--quick", "--steps", 2, "--out", run)
    kermix("sample", run, "-n", 2, "--given", f"t={written}", "-o", out)
    assert (pd.read_parquet(out)["t"] == pd.Timestamp(written, tz="Asia/Tokyo")).all()


def test_dates_are_not_said_to_do_where_a_zone_is_needed():
    schema = km.Schema.infer(table("Asia/Tokyo"))
    dates = table().assign(t=table()["t"].dt.strftime("%Y-%m-%d") + " ?")
    with pytest.raises(SchemaError) as raised:
        schema.encode(dates)
    assert "written as 2024-01-31 12:30:00+00:00, with its zone" in str(raised.value)
    assert "2024-01-31 or" not in str(raised.value)
