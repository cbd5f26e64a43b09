"""Many stores at once, held against their bars: `python -m benchmarks.many_stores`.

Each question is measured by itself and keeps its last answer, with commit, date and parameters, in
`benchmarks/results/many_stores.json`; a short run writes its answers beside that.
"""

from benchmarks.many_stores.answers import MANY_STORES

if __name__ == "__main__":
    MANY_STORES.main(__doc__)
