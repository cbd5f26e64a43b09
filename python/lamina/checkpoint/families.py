"""What the column families of a store mean: operator metadata and state schemas, put together.

Schema files say neither whether a family holds lists nor which variable it belongs to. Both follow from the operator:
`transformWithState` records its variables, and only their list states and the stream-stream join's timestamp families
(join state format 4) hold several values per key.
"""

from __future__ import annotations

from dataclasses import dataclass

from lamina.checkpoint.operators import OperatorMetadata, StateVariable
from lamina.checkpoint.state_schemas import ColumnFamilySchema, StateSchema

JOIN = "symmetricHashJoin"
_TIMESTAMP_SPECS = frozenset({"TimestampAsPrefixKeyStateEncoderSpec", "TimestampAsPostfixKeyStateEncoderSpec"})
_INDEX_PREFIXES = ("$ttl_", "$min_", "$count_", "$rowCounter_")


@dataclass(frozen=True)
class ColumnFamilyMeaning:
    """One column family.

    Args:
        variable: the variable of `transformWithState` that it holds or serves, None elsewhere.
        internal: whether it is an index or a counter that Spark keeps beside the values.
        multi_value: whether a key has a list of values.
        ttl: whether its variable has a time to live.
    """

    schema: ColumnFamilySchema
    variable: StateVariable | None
    internal: bool
    multi_value: bool
    ttl: bool


def column_families(operator: OperatorMetadata, schema: StateSchema) -> tuple[ColumnFamilyMeaning, ...]:
    """The column families of a store of `operator`, in the order of the schema file."""
    return tuple(_meaning(operator, family) for family in schema.column_families)


def _meaning(operator: OperatorMetadata, family: ColumnFamilySchema) -> ColumnFamilyMeaning:
    variables = {variable.name: variable for variable in operator.variables}
    served = next((family.name[len(prefix) :] for prefix in _INDEX_PREFIXES if family.name.startswith(prefix)), None)
    variable = variables.get(family.name if served is None else served)
    if operator.name == JOIN:
        multi_value = family.encoder is not None and family.encoder["keyStateEncoderType"] in _TIMESTAMP_SPECS
    else:
        multi_value = served is None and variable is not None and variable.kind == "ListState"
    return ColumnFamilyMeaning(
        schema=family,
        variable=variable,
        internal=family.name.startswith("$") or family.name.endswith("-tsWithKey"),
        multi_value=multi_value,
        ttl=variable is not None and variable.ttl,
    )
