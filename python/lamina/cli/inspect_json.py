"""`lamina inspect --json`: one JSON object whose keys are only ever added to."""

from __future__ import annotations

from typing import Any

from lamina.checkpoint import ColumnFamilyMeaning, OperatorSurvey
from lamina.cli.unmerged import unmerged
from lamina.store.admin.store_survey import StoreSurvey, VersionDetails, VersionSurvey
from lamina.store.admin.survey import CheckpointSurvey


def to_json(found: CheckpointSurvey) -> dict[str, Any]:
    """Everything that the survey found; sizes in bytes, times in milliseconds since 1970.

    `manifest` is null for versions whose manifest was not read: without details, all but the newest committed one.
    """
    return {
        "checkpoint": found.url,
        "query": found.query,
        "uuid": found.identity.uuid if found.identity else None,
        "runs": [{"epoch": run.epoch, "id": run.id} for run in found.runs],
        "batches": {"planned": list(found.planned), "committed": list(found.committed)},
        "watermark_ms": found.watermark_ms,
        "provider": found.provider,
        "format_version": found.format_version,
        "operators": [_operator(operator) for operator in found.operators],
        "stores": [_store(store) for store in found.stores],
        "log": {
            "objects": found.log.objects,
            "bytes": found.log.bytes,
            "needs": found.log.needs,
            "oldest_ms": found.log.oldest_ms,
            "places": [{"url": url, "objects": objects, "bytes": size} for url, objects, size in found.log.places],
            "writers": [
                {
                    "process": one.process,
                    "published_ms": one.published_ms,
                    "commits": one.commits,
                    "figures": {kind: dict(counts) for kind, counts in one.figures.items()},
                }
                for one in found.log.writers
            ],
        },
        "problems": found.problems,
    }


def _operator(operator: OperatorSurvey) -> dict[str, Any]:
    metadata = operator.metadata
    return {
        "operator": metadata.operator,
        "name": metadata.name,
        "metadata_version": metadata.version,
        "partitions": operator.partitions,
        "properties": dict(metadata.properties),
        "stores": [
            {
                "name": store.name,
                "prefix_columns": store.prefix_columns,
                "column_families": [_family(family) for family in operator.families.get(store.name, ())],
            }
            for store in metadata.stores
        ],
    }


def _family(family: ColumnFamilyMeaning) -> dict[str, Any]:
    schema = family.schema
    return {
        "name": schema.name,
        "key_schema": schema.key_schema,
        "value_schema": schema.value_schema,
        "encoder": schema.encoder,
        "variable": family.variable.kind if family.variable else None,
        "internal": family.internal,
        "multi_value": family.multi_value,
        "ttl": family.ttl,
    }


def _store(store: StoreSurvey) -> dict[str, Any]:
    found = unmerged([store])
    return {
        "operator": store.identity.operator,
        "partition": store.identity.partition,
        "name": store.identity.name,
        "version": store.version,
        "attempt": store.attempt,
        "stored_bytes": store.size,
        "newest_bytes": store.newest_size if store.details else None,
        "rows": store.details.rows if store.details else None,
        "state_bytes": store.details.state_bytes if store.details else None,
        "unmerged": {"increments": found.increments, "bytes": found.bytes, "in_log": found.in_log}
        if store.details
        else None,
        "versions": [_version(version) for version in store.versions],
        "files": [
            {
                "name": file.name,
                "kind": file.kind,
                "bytes": file.size,
                "modified_ms": file.modified_ms,
                "used": file.used,
            }
            for file in store.files
        ],
        "problems": list(store.problems),
    }


def _version(version: VersionSurvey) -> dict[str, Any]:
    return {
        "version": version.version,
        "attempt": version.attempt,
        "status": version.status,
        "epoch": version.epoch,
        "bytes": version.size,
        "modified_ms": version.modified_ms,
        "manifest": _details(version.details) if version.details else None,
    }


def _details(details: VersionDetails) -> dict[str, Any]:
    return {
        "kind": details.kind,
        "base": details.base,
        "changes": details.changes,
        "rows": details.rows,
        "state_bytes": details.state_bytes,
        "run": details.run,
        "task_attempt": details.task_attempt,
        "created_ms": details.created_ms,
        "spark": details.spark,
        "writer": details.writer,
        "chain_bytes": details.chain_bytes,
        "chain": [reference.to_json() for reference in details.chain],
    }
