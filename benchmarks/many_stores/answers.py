"""The questions about many stores."""

from __future__ import annotations

from benchmarks.many_stores import collection, commit_cost, compaction, growth, joins, small_commits
from benchmarks.questions import Questions

WORDS = """The floor of `small-commits` is the stateless query of the same rows; the bare map is a peer that keeps
nothing. Each store runs in a fresh JVM, in turns. Given are `addBatch` and the whole trigger, which a user waits
for, and the processor time of all processes. RocksDB runs with Spark's defaults, and as its tuning guide has it;
what is set is printed with the table. Rounds are few: given are medians and the range of all rounds.

A storage is far away where the engine waits before each request (`benchmarks/many_stores/latency.py`). That takes no
processor time, and requests are counted there. S3 is moto's server in another process; the processor time is that of
the client. Local files lie where `TMPDIR` says; what creating one costs the kernel is said beside the commit's.
"""

MANY_STORES = Questions(
    "many_stores",
    "Many stores",
    "asks what many stores cost, and holds each answer against its bar",
    WORDS,
    (
        small_commits.QUESTION,
        commit_cost.QUESTION,
        joins.BATCHES,
        joins.OPENS_COLD,
        collection.QUESTION,
        compaction.QUESTION,
        growth.QUESTION,
    ),
)
