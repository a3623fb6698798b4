"""Ids of samples: in the pattern of the column, unique, and none of those that are there."""

import base64
import datetime
import json
import re
import uuid

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import kermix as km

ROWS = 300
RNG = np.random.default_rng(0)
DAYS = [
    datetime.date(2020, 1, 30) + datetime.timedelta(int(k)) for k in RNG.integers(0, 300, ROWS)
]
SPARSE = np.sort(RNG.permutation(20_000)[:ROWS])
CASES = {
    "after letters": ([f"T-{k}" for k in 104_233 + SPARSE], r"T-1[0-2][0-9]{4}"),
    "by year": ([f"{2013 + k % 4}-{k:06d}" for k in range(1700, 1700 + ROWS)],
                r"201[3-6]-00[0-9]{4}"),
    "UUID": ([str(uuid.UUID(bytes=RNG.bytes(16), version=4)) for _ in range(ROWS)], None),
    "UUID in capitals": ([str(uuid.UUID(bytes=RNG.bytes(16), version=4)).upper()
                          for _ in range(ROWS)], r"[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}"),
    "hash": ([RNG.bytes(32).hex() for _ in range(ROWS)], r"[0-9a-f]{64}"),
    "zeros before": ([f"{k:07d}" for k in 40 * SPARSE], r"0[0-9]{6}"),
    "after a day": ([f"{d:%Y%m%d}-{n:04d}" for d, n in zip(DAYS, SPARSE, strict=True)],
                    r"2020[0-9]{4}-[0-9]{4,5}"),
    "before a day": ([f"{n:05d}/{d}" for d, n in zip(DAYS, SPARSE, strict=True)],
                     r"[0-9]{5}/2020-[0-9]{2}-[0-9]{2}"),
    "file": ([f"img_{k:04d}.jpg" for k in range(ROWS)], r"img_[0-9]{4}\.jpg"),
    "letters and digits": ([f"N{k % 10}{'ABCDE'[k % 5]}{k % 7}{'XYZ'[k % 3]}" + "QR"[k % 2]
                            for k in range(210)], r"N[0-9][A-E][0-6][X-Z][QR][0-9]?"),
    "letters or digits": ([f"N{7 * k + 100}{'ABCD'[k % 4]}A" if k % 2 else f"N{10_000 + 31 * k}"
                           for k in range(120)], r"N[0-9]{3}([0-9]{2}|[A-D]A)"),
    "hexadecimal": ([f"0x{k:06X}" for k in RNG.permutation(2**24)[:ROWS]], r"0x[0-9A-F]{6}"),
    "two widths": ([f"A{k:04d}" if k % 2 else f"B-{k}" for k in range(ROWS)],
                   r"A0[0-9]{3}|B-[1-9][0-9]{2}"),
    "two widths, sparse": ([f"A{k:05d}" if k % 2 else f"B-{k}" for k in SPARSE],
                           r"A[01][0-9]{4}|B-(0|[1-9][0-9]*)"),
    "article": ([str(k) for k in 4_000_000_000_000 + RNG.permutation(10**6)[:ROWS]],
                r"4000000[0-9]{6}"),
    "address": ([".".join(map(str, k)) for k in RNG.integers(0, 256, (ROWS, 4))],
                r"((0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5])(\.(?!$)|$)){4}"),
    "mail": ([f"{['anna', 'bert', 'cleo'][k % 3]}.{'abcdefghij'[k % 10] * (2 + k % 7)}{k % 90}"
              f"@{['web.de', 'shop.example'][k % 2]}" for k in range(ROWS)],
             r"(anna|bert|cleo)\.[a-j]{2,8}[1-8]?[0-9]@(web\.de|shop\.example)"),
    "tokens": ([base64.urlsafe_b64encode(RNG.bytes(9)).decode() for _ in range(ROWS)],
               r"[A-Za-z0-9_-]{12}"),
    "every fifth": ([f"S{k}" for k in range(1005, 1005 + 5 * ROWS, 5)], r"S[0-9]{3}[05]"),
}  # fmt: skip


def back(table, rows=None, seed=0):
    """A table after encoding and decoding, with so many rows."""
    schema = km.Schema.infer(table)
    encoded = schema.encode(table)
    at = np.arange(len(encoded) if rows is None else rows) % len(encoded)
    return schema, schema.decode(encoded[at], seed=seed)


def with_number(ids):
    return pd.DataFrame({"code": ids, "size": np.random.default_rng(1).normal(size=len(ids))})


@pytest.mark.parametrize("name", CASES)
def test_ids_are_new_and_in_the_pattern(name):
    ids, pattern = CASES[name]
    table = with_number(ids)
    schema, drawn = back(table)
    assert schema["code"].kind == "key"
    assert drawn["code"].is_unique
    assert not set(drawn["code"]) & set(ids)
    assert drawn["code"].dtype == table["code"].dtype
    for text in drawn["code"]:
        if pattern is None:
            assert uuid.UUID(text).version == 4
            assert uuid.UUID(text).variant == uuid.RFC_4122
        else:
            assert re.fullmatch(pattern, text), text
    for day in re.findall(r"2020-?[0-9]{2}-?[0-9]{2}", " ".join(drawn["code"])) if (
        "day" in name) else ():  # fmt: skip
        assert min(DAYS) <= datetime.date.fromisoformat(day) <= max(DAYS)


@pytest.mark.parametrize("name", CASES)
def test_a_saved_schema_makes_the_same_ids_and_holds_none_of_the_old(name, tmp_path):
    ids, _ = CASES[name]
    table = with_number(ids)
    schema, drawn = back(table, seed=3)
    schema.save(tmp_path / "s.json")
    again = km.Schema.load(tmp_path / "s.json")
    assert again.decode(again.encode(table), seed=3).equals(drawn)
    told = (tmp_path / "s.json").read_text()
    assert not [text for text in ids if text in told]
    assert name in ("by year", "file", "two widths", "every fifth") or not drawn["code"].equals(
        back(table, seed=4)[1]["code"]
    )


@pytest.mark.parametrize("ids", [
    [f"A-{k:02d}" for k in range(1, 100)],
    [f"{a}{b}{c}" for a in "ABC" for b in "XYZ" for c in range(9)],
    [f"Q{k:03d}" for k in range(3, 1000, 3)],
])  # fmt: skip
def test_a_pattern_without_room_is_made_wider(ids):
    _, drawn = back(with_number(ids), rows=20_000)
    assert drawn["code"].is_unique
    assert not set(drawn["code"]) & set(ids)
    assert {text[0] for text in drawn["code"]} == {text[0] for text in ids}


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint16", "float64", "Int64"])
def test_numbers_of_rows_go_on(dtype):
    table = with_number(range(500)).assign(code=pd.Series(range(9000, 9500)).astype(dtype))
    schema, drawn = back(table)
    assert schema["code"].kind == "key"
    assert drawn["code"].tolist() == list(range(9500, 10_000))
    assert drawn["code"].dtype == table["code"].dtype


@pytest.mark.parametrize("dtype", ["int64", "float64"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_numbers_in_even_steps_are_ids_and_go_on_in_them(dtype, shuffled):
    steps = np.arange(5, 4005, 10)
    steps = np.random.default_rng(0).permutation(steps) if shuffled else steps
    table = with_number(range(400)).assign(code=pd.Series(steps).astype(dtype))
    schema, drawn = back(table)
    assert schema["code"].kind == "key"
    assert drawn["code"].tolist() == list(range(4005, 8005, 10))


def test_numbers_that_are_all_different_by_chance_stay_numbers():
    rng = np.random.default_rng(0)
    table = with_number(range(ROWS)).assign(
        price=1000 + 5 * rng.permutation(2000)[:ROWS], years=np.delete(np.arange(ROWS + 1), 40),
        steps=np.sort(rng.permutation(2 * ROWS)[:ROWS]), third=np.arange(ROWS) / 4,
    )  # fmt: skip
    schema = km.Schema.infer(table)
    assert {schema[name].kind for name in ("price", "years", "steps", "third")} == {"number"}


def test_shared_words_are_kept_and_others_are_not():
    rng = np.random.default_rng(0)
    secret = ["".join(rng.choice(list("klmnopqrst"), 9)) for _ in range(ROWS)]
    ids = [f"{name}{k}@{['web.de', 'firm.example'][k % 2]}" for k, name in enumerate(secret)]
    told = json.dumps(km.Schema.infer(with_number(ids)).to_dict())
    assert "firm.example" in told
    assert not [name for name in secret if name in told]
    assert len(told) < 6000


def test_a_type_that_is_full_still_has_rows():
    table = with_number(range(100)).assign(code=pd.Series(range(28, 128), dtype="int8"))
    _, drawn = back(table)
    assert drawn["code"].dtype == "int8"
    assert not set(drawn["code"]) & set(table["code"])
    assert len(back(table, rows=900)[1]) == 900


def test_ids_that_come_back_do_so_as_often_and_gaps_stay():
    rng = np.random.default_rng(2)
    ids = [f"P{k:05d}" for k in rng.integers(0, 90_000, 600)]
    ids = [None if k % 5 == 0 else ids[k - k % 3] for k in range(600)]
    table = with_number(ids)
    schema = km.Schema.infer(table, kinds={"code": "key"})
    drawn = schema.decode(schema.encode(table))
    assert abs(drawn["code"].isna().mean() - 0.2) < 0.06
    assert abs(drawn["code"].nunique() / table["code"].nunique() - 1) < 0.2
    assert not set(drawn["code"].dropna()) & set(ids)


@pytest.mark.parametrize("texts", [
    ["Ann Boleyn", "Bob Dylan", "Cy Twombly", "Dora Maar", "Eva Hesse"],
    ["called twice", "left 3 at the door, the other 12 later", "no bell", "ask Bob", "late"],
])  # fmt: skip
def test_words_are_no_ids(texts):
    rng = np.random.default_rng(0)
    words = [f"{rng.choice(texts)} {''.join(rng.choice(list('abcdefgh'), 5 + k % 4))}"
             for k in range(100)]  # fmt: skip
    schema, drawn = back(with_number(list(dict.fromkeys(words))))
    assert schema["code"].kind == "text"
    assert drawn["code"].isna().all()


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "dict"])
def test_all_columns_come_back_in_their_order_and_type(kind):
    cells = {
        "note": pa.array([f"some words {'and more ' * (k % 9)}{chr(97 + k % 23) * 3}"
                          for k in range(ROWS)]),
        "size": pa.array(np.random.default_rng(0).normal(size=ROWS)),
        "id": pa.array(CASES["after letters"][0]),
        "raw": pa.array([bytes([k % 7]) for k in range(ROWS)]),
    }  # fmt: skip
    table = pa.table(cells)
    schema = km.Schema.infer(table)
    drawn = schema.decode(schema.encode(table), frame=kind)
    names = list(drawn) if kind == "dict" else (
        drawn.column_names if kind == "arrow" else list(drawn.columns))  # fmt: skip
    assert names == list(cells)
    if kind == "arrow":
        assert drawn.schema == table.schema


def test_older_schemas_still_count():
    table = with_number([f"A-{k:03d}" for k in range(ROWS)])
    told = km.Schema.infer(table).to_dict()
    del told["columns"][0]["pattern"]
    told["columns"][0].update(value=7, prefix="A-", digits=3)
    schema = km.Schema.from_dict(json.loads(json.dumps(told)))
    assert schema.decode(schema.encode(table))["code"].tolist()[:2] == ["A-007", "A-008"]
