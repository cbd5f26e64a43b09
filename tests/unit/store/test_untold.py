"""What is kept of commits until a collector is told of them."""

from __future__ import annotations

from lamina.store.collection.footprints import Footprint
from lamina.store.collection.untold import MOST_KEPT, MOST_NAMES, UntoldFootprints


def kept(commits: int, names: int) -> list[str]:
    untold = UntoldFootprints()
    for number in range(commits):
        untold.add(str(number), Footprint([f"{number}-{name}" for name in range(names)], None))
    taken = [attempt for attempt, _ in untold.take()]
    assert untold.take() == []
    return taken


def test_the_latest_commits_are_kept_and_fewer_where_chains_are_long() -> None:
    latest = [str(number) for number in range(1000)]
    assert kept(1000, 10) == latest[-MOST_KEPT:]
    assert kept(1000, 300) == latest[-(MOST_NAMES // 300) :]
    assert kept(3, MOST_NAMES + 1) == ["2"]


def test_what_was_taken_does_not_count() -> None:
    untold = UntoldFootprints()
    for _ in range(3):
        untold.add("before", Footprint(["name"] * (MOST_NAMES // 2), None))
        untold.add("after", Footprint(["name"] * (MOST_NAMES // 2), None))
        assert len(untold.take()) == 2
