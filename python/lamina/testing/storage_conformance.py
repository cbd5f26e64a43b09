"""What every storage must do: subclass `StorageConformance` once per storage and give it a `new_storage`."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from lamina.storage import Storage
from lamina.testing.expect import fails_with


class StorageConformance:
    """Tests of one storage; each gets an empty one."""

    storage: Storage

    def new_storage(self) -> Storage:
        """An empty storage."""
        raise NotImplementedError

    def setup_method(self) -> None:
        self.storage = self.new_storage()

    def test_what_was_published_is_read_back(self) -> None:
        assert self.storage.publish("a/b/c", b"hello") == 5
        assert bytes(self.storage.read("a/b/c")) == b"hello"
        assert self.storage.size("a/b/c") == 5

    def test_a_stamp_changes_nothing_but_the_time(self) -> None:
        self.storage.publish("d/f", b"hello")
        (before,) = self.storage.list("d")
        stamped = self.storage.stamp("d/f")
        (after,) = self.storage.list("d")
        assert bytes(self.storage.read("d/f")) == b"hello"
        assert (after.name, after.size) == (before.name, before.size)
        assert after.modified_ms >= before.modified_ms if stamped else after == before

    def test_an_object_that_is_published_once_more_is_never_away(self) -> None:
        """Others count on it: a late attempt of an upload whose first one was slow must not take it from them."""
        self.storage.publish("d/f", b"the same")
        away: list[int] = []
        ended = threading.Event()

        def look() -> None:
            while not ended.is_set():
                if not self.storage.exists("d/f"):
                    away.append(1)

        looking = threading.Thread(target=look)
        looking.start()
        try:
            for _ in range(100):
                self.storage.publish("d/f", [b"the ", b"same"])
        finally:
            ended.set()
            looking.join()
        assert not away
        assert bytes(self.storage.read("d/f")) == b"the same"
        assert [entry.name for entry in self.storage.list("d")] == ["f"]

    def test_chunks_are_joined_in_order(self) -> None:
        assert self.storage.publish("f", iter([b"he", memoryview(b"ll"), b"", b"o"])) == 5
        assert bytes(self.storage.read("f")) == b"hello"

    def test_an_empty_object_is_an_object(self) -> None:
        self.storage.publish("empty", b"")
        assert self.storage.size("empty") == 0
        assert bytes(self.storage.read("empty")) == b""

    def test_a_large_object_is_read_back_whole_and_in_ranges(self) -> None:
        block = bytes(range(256)) * 4096
        self.storage.publish("large", (block for _ in range(70)))
        assert self.storage.size("large") == 70 << 20
        assert bytes(self.storage.read_range("large", (1 << 20) - 3, 6)) == b"\xfd\xfe\xff\x00\x01\x02"
        whole = self.storage.read("large")
        assert whole.size == 70 << 20
        assert bytes(whole.slice(69 << 20)) == block

    def test_an_object_is_streamed_in_pieces_and_ends_where_it_ends(self) -> None:
        whole = bytes(range(256)) * 40_000
        self.storage.publish("large", whole)
        for length in (len(whole) - 1, len(whole), len(whole) + 1, 3 * len(whole)):
            for piece in (4 << 20, len(whole) // 2, len(whole), 1 << 30):
                pieces = [bytes(one) for one in self.storage.stream("large", length, piece)]
                assert b"".join(pieces) == whole[:length]
                assert max(map(len, pieces)) <= piece + 1
        self.storage.publish("empty", b"")
        assert b"".join(map(bytes, self.storage.stream("empty", 1, 9))) == b""
        # who stops early leaves nothing behind
        begun = self.storage.stream("large", len(whole), 1 << 20)
        next(begun)
        begun.close()

    def test_a_read_takes_the_size_that_the_reader_knows(self) -> None:
        self.storage.publish("d/f", b"hello")
        assert [bytes(self.storage.read("d/f", size)) for size in (None, 5, 9)] == [b"hello"] * 3
        assert bytes(self.storage.read("d/f", 3)) in (b"hel", b"hello")

    def test_a_range_ends_with_the_object(self) -> None:
        self.storage.publish("f", b"0123456789")
        assert bytes(self.storage.read_range("f", 3, 4)) == b"3456"
        assert bytes(self.storage.read_range("f", 8, 100)) == b"89"

    def test_a_range_of_nothing_and_one_behind_the_end_are_empty(self) -> None:
        self.storage.publish("f", b"0123456789")
        self.storage.publish("empty", b"")
        assert self.storage.read_range("f", 3, 0).size == 0
        assert self.storage.read_range("f", 10, 5).size == 0
        assert self.storage.read_range("f", 99, 5).size == 0
        assert self.storage.read_range("f", 99, 40 << 20).size == 0
        assert self.storage.read_range("empty", 0, 5).size == 0
        tail, size = self.storage.read_tail("empty", 4)
        assert (tail.size, size) == (0, 0)

    def test_the_tail_comes_with_the_size(self) -> None:
        self.storage.publish("f", b"0123456789")
        tail, size = self.storage.read_tail("f", 4)
        assert (bytes(tail), size) == (b"6789", 10)
        tail, size = self.storage.read_tail("f", 100)
        assert (bytes(tail), size) == (b"0123456789", 10)

    def test_publishing_again_replaces_the_whole_object(self) -> None:
        self.storage.publish("f", b"a longer first one")
        self.storage.publish("f", b"second")
        assert bytes(self.storage.read("f")) == b"second"

    def test_a_publication_whose_source_fails_leaves_nothing_and_raises_the_sources_error(self) -> None:
        def source() -> Iterator[bytes]:
            yield b"x" * 1000
            raise ConnectionResetError("the sender went away")

        try:
            self.storage.publish("d/f", source())
        except ConnectionResetError:
            pass
        else:
            raise AssertionError("the source's error was lost")
        assert not self.storage.exists("d/f")
        assert list(self.storage.list("d")) == []

    def test_a_failed_publication_keeps_what_was_there(self) -> None:
        self.storage.publish("f", b"first")

        def source() -> Iterator[bytes]:
            yield b"sec"
            raise ConnectionResetError("the sender went away")

        try:
            self.storage.publish("f", source())
        except ConnectionResetError:
            pass
        assert bytes(self.storage.read("f")) == b"first"

    def test_nothing_is_listed_of_an_object_that_is_being_written(self) -> None:
        seen: list[object] = []

        def source() -> Iterator[bytes]:
            yield b"x" * 1000
            seen.append([entry.name for entry in self.storage.list("d") if not entry.name.startswith(".")])
            seen.append([self.storage.exists("d/f")])
            yield b"y"

        self.storage.publish("d/f", source())
        assert seen == [[], [False]]
        assert self.storage.size("d/f") == 1001

    def test_publishing_if_absent_writes_once(self) -> None:
        assert self.storage.publish_if_absent("d/f", b"first")
        assert not self.storage.publish_if_absent("d/f", b"second")
        assert bytes(self.storage.read("d/f")) == b"first"

    def test_of_concurrent_publications_if_absent_exactly_one_wins(self) -> None:
        threads = 8
        barrier = threading.Barrier(threads)
        won: list[int] = []

        def publish(number: int) -> None:
            barrier.wait()
            if self.storage.publish_if_absent("d/f", str(number).encode()):
                won.append(number)

        running = [threading.Thread(target=publish, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert len(won) == 1
        assert bytes(self.storage.read("d/f")) == str(won[0]).encode()

    def test_a_listing_shows_objects_of_one_directory_with_size_and_time(self) -> None:
        self.storage.publish("d/a", b"1")
        self.storage.publish("d/b", b"22")
        self.storage.publish("d/deeper/c", b"333")
        self.storage.publish("other", b"4444")
        listed = {entry.name: entry for entry in self.storage.list("d")}
        assert {name: entry.size for name, entry in listed.items()} == {"a": 1, "b": 2}
        # some time in this century, in milliseconds
        assert all(946_684_800_000 < entry.modified_ms < 4_102_444_800_000 for entry in listed.values())

    def test_a_directory_that_is_not_there_lists_as_empty(self) -> None:
        assert list(self.storage.list("nowhere/at/all")) == []

    def test_a_directory_is_no_object(self) -> None:
        self.storage.publish("d/deeper/f", b"x")
        assert not self.storage.exists("d/deeper")
        assert list(self.storage.list("d")) == []

    def test_deleting_takes_what_is_there_and_ignores_the_rest(self) -> None:
        for name in ("a", "b", "c"):
            self.storage.publish(f"d/{name}", b"x")
        self.storage.delete_many(["d/a", "d/missing", "d/c"])
        assert [entry.name for entry in self.storage.list("d")] == ["b"]
        self.storage.delete_many([])

    def test_reading_what_is_not_there_names_it(self) -> None:
        for read in (
            lambda: self.storage.read("d/missing"),
            lambda: self.storage.read_range("d/missing", 0, 10),
            lambda: self.storage.read_tail("d/missing", 10),
            lambda: next(self.storage.stream("d/missing", 10, 10)),
            lambda: self.storage.size("d/missing"),
        ):
            with fails_with("file.missing") as caught:
                read()
            assert "d/missing" in caught.error.message

    def test_names_with_spaces_and_other_letters_work(self) -> None:
        name = "d/ein Name mit Leerzeichen + Umlaut ä %20"
        self.storage.publish(name, b"x")
        assert self.storage.exists(name)
        assert [entry.name for entry in self.storage.list("d")] == [name[2:]]
