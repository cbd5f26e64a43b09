"""Keys belong to the partition into which Spark itself put them; those of which that is not known are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.format.manifest import ColumnFamily
from lamina.format.partitioning import partitions_of
from lamina.testing.expect import fails_with

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "spark-partitions" / "keys.json").read_text())
CASES = {case["schema"]: case["keys"] for case in GOLDEN["cases"]}


def family(schema: str, kind: str = "key", columns: int = 0, **more: Any) -> ColumnFamily:
    rule = {"kind": kind, "columns": columns}
    return ColumnFamily(3, "f", {"key_schema": schema, "key_bytes": "row", "partition_key": rule, **more})


def keys_of(schema: str) -> pa.Array:
    return pa.array([bytes.fromhex(key) for key, *_ in CASES[schema]], pa.binary())


def names_of(schema: str) -> str:
    return ", ".join(str(field["type"])[:40] for field in json.loads(schema)["fields"][:3])


@pytest.mark.parametrize("schema", CASES, ids=names_of)
def test_a_key_belongs_to_the_partition_into_which_spark_puts_it(schema: str) -> None:
    keys = keys_of(schema)
    for index, partitions in enumerate(GOLDEN["partitions"]):
        expected = [key[1 + index] for key in CASES[schema]]
        assert partitions_of(keys, family(schema), partitions).to_pylist() == expected
        # whatever lies before and behind them in memory
        repeated = pa.concat_arrays([keys, keys, keys]).slice(len(keys), len(keys))
        assert partitions_of(repeated, family(schema), partitions).to_pylist() == expected
        for number, one in enumerate(expected):
            assert partitions_of(keys.slice(number, 1), family(schema), partitions).to_pylist() == [one]


def test_each_case_has_several_keys() -> None:
    assert len(CASES) == 19
    assert all(len(keys) > 1 for keys in CASES.values())


def test_a_key_of_more_columns_than_spark_partitions_by_belongs_to_the_partition_of_those() -> None:
    two = next(schema for schema in CASES if "carrier" in schema and "flight" in schema)
    values = [("UA", 1), ("UA", -1), (None, 1), ("UA", None), (None, None), ("", 0)]
    whole = {value: key[2] for value, key in zip(values, CASES[two], strict=True)}
    for kind in ("prefix", "drop-last"):
        found = partitions_of(keys_of(two), family(two, kind, columns=1), 200).to_pylist()
        # a column that is null leaves the hash as it is, so that it may as well not be there
        expected = [whole["UA", None], whole["UA", None], whole[None, None], whole["UA", None], whole[None, None]]
        assert found[:5] == expected


def test_no_keys_have_no_partitions() -> None:
    assert partitions_of(pa.array([], pa.binary()), family(next(iter(CASES))), 7).to_pylist() == []


def of(kind: Any, **more: Any) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": "k", "type": kind, "nullable": True, **more}]})


ARRAY = {"type": "array", "elementType": "long", "containsNull": True}


@pytest.mark.parametrize(
    "refused",
    [
        family(of("long"), "unknown"),
        family(of("long"), key_bytes="spark"),
        family(of("long"), partition_key=None),
        family(of(ARRAY)),
        family(of(json.loads(of(ARRAY)))),
        family(of("variant")),
        family(of("string", metadata={"__COLLATIONS": {"k": "spark.UTF8_LCASE"}})),
    ],
    ids=["rule", "bytes", "no rule", "array", "array in struct", "variant", "collation"],
)
def test_a_family_whose_keys_do_not_tell_their_partition_is_refused(refused: ColumnFamily) -> None:
    with fails_with("store.unsupported") as caught:
        partitions_of(pa.array([bytes(16)]), refused, 7)
    assert "'f'" in caught.error.message


NO_COLUMNS = json.dumps({"type": "struct", "fields": []})


@pytest.mark.parametrize("rows", [1, 3])
def test_the_key_of_an_operator_without_keys_is_in_the_first_partition(rows: int) -> None:
    """Spark has all rows of an aggregation of everything there, and does not hash: of nothing that would be 42."""
    keys = pa.array([b""] * rows, pa.binary())
    for partitions in (1, 7, 200):
        assert partitions_of(keys, family(NO_COLUMNS), partitions).to_pylist() == [0] * rows


def row_of(*slots: tuple[int, int], behind: bytes = b"") -> bytes:
    """A row of columns without nulls, whose slots hold two words each."""
    return bytes(8) + b"".join(struct.pack("<II", *slot) for slot in slots) + behind


NESTED = of(json.loads(of("string")))


@pytest.mark.parametrize(
    ("schema", "key"),
    [
        (of("string"), b""),
        (of("string"), b"x"),
        (of("string"), bytes(8)),
        (of("string"), bytes(8) + b"\xff" * 8),
        (of("string"), row_of((0, 24))),
        (of("string"), row_of((9, 16), behind=b"12345678")),
        (of("long"), bytes(8)),
        (NESTED, row_of((16, 16))),
        (NESTED, row_of((16, 16), behind=bytes(8))),
        (NESTED, row_of((16, 16), behind=row_of((1, 16)))),
    ],
    ids=lambda value: "nested" if value == NESTED else names_of(value) if isinstance(value, str) else value.hex(),
)
def test_keys_that_are_no_rows_of_their_schema_are_refused(schema: str, key: bytes) -> None:
    fits = row_of((16, 16), behind=row_of((0, 16))) if schema == NESTED else row_of((0, 16))
    assert len(partitions_of(pa.array([fits]), family(schema), 7)) == 1
    # also where the words that it lacks are those of another key
    for keys in ([key], [key, fits, fits, fits]):
        with pytest.raises(ValueError, match="no row of its schema"):
            partitions_of(pa.array(keys, pa.binary()), family(schema), 7)
