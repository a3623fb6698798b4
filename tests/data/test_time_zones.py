"""Instants in several zones are the same times; times without a zone are something else."""

import itertools

import pandas as pd
import pytest

import kermix as km
from kermix.errors import SchemaError

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
    schema = km.Schema.of(table(first))
    own, other = schema.encode(table(first)), schema.encode(table(second))
    assert (own.codes == other.codes).all()
    assert (own.values == other.values).all()
    back = schema.decode(other)["t"]
    assert str(back.dt.tz) == first
    assert (back == table(second)["t"]).all()
    found = km.compare(table(first), table(second), permutations=20, bootstrap=0)
    assert all(c.distance == pytest.approx(0, abs=1e-9) for c in found.column_differences)


@pytest.mark.parametrize(("first", "second"), [*itertools.product(UNITS, UNITS)])
def test_pooled_times_have_the_zone_of_the_first_and_the_finest_unit(first, second):
    pooled = km.Schema.of(table("Asia/Tokyo", first), table("UTC", second))
    finest = max(first, second, key=UNITS.index)
    assert pooled["t"].type.arrow == f"timestamp[{finest}, tz=Asia/Tokyo]"


@pytest.mark.parametrize("zone", ZONES)
def test_times_without_a_zone_are_not_mixed_with_instants(zone):
    naive, zoned = table(), table(zone)
    for known, new in ((naive, zoned), (zoned, naive)):
        schema = km.Schema.of(known)
        with pytest.raises(SchemaError, match=r"column t: times have a zone .*tz_localize"):
            schema.encode(new)
        with pytest.raises(SchemaError, match=rf"Column t: times have a zone \({zone}\)"):
            km.Schema.of(known, new)
        with pytest.raises(SchemaError, match=r"Column t: times have a zone"):
            km.compare(known, new, permutations=20, bootstrap=0, strict=True)
        found = km.compare(known, new, permutations=20, bootstrap=0)
        assert "t" not in found.columns
        assert "t (timestamp[" in found.reading_notes[0]
    km.Schema.of(naive).encode(zoned.assign(t=zoned["t"].dt.tz_localize(None)))
