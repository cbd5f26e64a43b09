"""How the commands reach a checkpoint: the option for Hadoop's keys, and the storage that it opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from lamina.storage import Storage

_SPARKS = "spark.hadoop."
"""What Spark's configuration writes before a key of Hadoop's."""

HadoopKeys = Annotated[
    list[str] | None,
    typer.Option("--hadoop", metavar="KEY=VALUE", help="A Hadoop key for access, such as an endpoint. Repeatable."),
]

Roots = Annotated[
    list[str] | None,
    typer.Option(
        "--root",
        metavar="URL",
        help="Another checkpoint, or a place of log objects, whose files may be read, as the query's settings "
        "storage.roots and changelog.path have it. Repeatable.",
    ),
]


def storage(checkpoint: str, hadoop: Sequence[str] | None, roots: Sequence[str] | None = None) -> Storage:
    """The storage whose root is the checkpoint, with the access that `KEY=VALUE`s give.

    Args:
        roots: other directories whose files may be referred to.
    Raises:
        typer.BadParameter: where one is something else.
        LaminaError: `storage.scheme`.
    """
    keys = {}
    for given in hadoop or ():
        key, separator, value = given.partition("=")
        key = key.strip().removeprefix(_SPARKS)
        if not key or not separator:
            raise typer.BadParameter(
                f"{given!r} is not KEY=VALUE, such as fs.s3a.endpoint=http://localhost:9000", param_hint="--hadoop"
            )
        keys[key] = value.strip()
    return Storage(checkpoint, keys, roots=roots or ())
