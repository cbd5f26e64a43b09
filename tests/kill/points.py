"""The named points of the kill campaign, and the promises that it can take away; imported by its hook, too."""

from __future__ import annotations

AT_RANDOM = "at random"
PUBLICATION = ("before publication", "during publication", "after publication")
BETWEEN = "between state commit and batch commit"
COMPACTION = ("before a segment", "during compaction", "after a segment")
TABLES = ("during an ingest", "during a merge of tables", "during a link")
"""Of `backend` `rocksdb`, whose files are too small to be interrupted while they are published."""
ACCEPTED = "accepted, not sealed"
"""Of the changelog, whose log objects are what is published otherwise."""
ENTRY = ("durable, no entry", "entry written")
"""Of the changelog, too: at the entry of a batch in Spark's commit log, around a file manager (`barrier/`)."""
COLLECTION = "during collection"
RESTORE = "during restore"

PUBLICATION_BEFORE_DATA = "publication before data"
NO_LINEAGE_CHECK = "no lineage check"
ENTRY_BEFORE_DURABLE = "entry before durable"
WRONG_OBJECT = "wrong object waited for"
BARRIERS = {ENTRY_BEFORE_DURABLE: "EntryBeforeDurable", WRONG_OBJECT: "WrongObject"}
"""Those that a file manager takes away (`barrier/`), around which lamina's is put."""
