"""Mutants of the shim: one state, wait or check taken away each, and the rule that must find it.

Rules are those of the concurrent model (`model/Rules.scala` among the tests of the shim). Where it takes a rare order
of steps to notice, the test of that order must.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SHIM = Path("jvm-shim/src/main/scala/org/apache/spark/sql/lamina")
TESTS = Path("jvm-shim/src/test/scala/org/apache/spark/sql/lamina")
MODEL = "model/ConcurrentModelSuite.scala"

READS = "an open that is not stale reads exactly the rows of its version"
KEEPS_BYTES = "rows that were handed out in place keep their bytes as long as their task lives"
FAILED = "a commit whose publication failed is not visible"
ENDS_DURABLE = "a task ends well when its commits are durable, under the ids that they were accepted as"
ONE_WRITER = "there is one writer, and its table is in use"
KEEPS_TRANSACTION = "a writer whose task lives keeps its transaction"
READS_ON = "a task that reads on what it has committed is not cut off"
NO_LOCK = "no lock of a table is held while the engine is called"
ONE_BY_ONE = "opens of one provider ask the engine one after the other"
REASONS = "an open or a commit fails only for a reason that it can name"
NOTHING_LEFT = "nothing is left when all tasks have ended and all providers are closed"
RUNNING = "a table of a query that runs is not evicted"
NO_WAIT = "nobody waits for ever"
OTHER_TABLE = "values of a key that a reader has open are refused when its upgrade has gone on with another table"

THREADS_THAT_STAY = (
    "after all of its listeners",
    "although the user's function has renamed it",
    "however deep its stack is",
)


@dataclass(frozen=True)
class Mutant:
    """A text that is there once in a file of the shim, what stands in its place, and who must find that.

    `rules` are rules of the model, of which the first that fails must be one, or all tests of another suite that fail.
    """

    name: str
    file: str
    text: str
    replacement: str
    rules: tuple[str, ...]
    suite: str = MODEL

    def applied(self, text: str) -> str:
        """The file's text with the mutant in it."""
        assert text.count(self.text) == 1, f"{self.file} has {self.text!r} {text.count(self.text)} times"
        return text.replace(self.text, self.replacement)


MUTANTS = [
    # lifetimes
    Mutant(
        "a_reader_is_not_counted",
        "LiveTable.scala",
        "    if (layers.forall(_.holdsTimers)) table.readersActive(open.stamp)\n",
        "",
        (KEEPS_BYTES,),
    ),
    Mutant(
        "rows_are_given_up_while_their_task_goes_on",
        "Opens.scala",
        "if (taskThread == null) action() else",
        "if (taskThread == null || taskThread.isAlive) action() else",
        tuple(f"rows that a task has read stay until its thread has left it, {how}" for how in THREADS_THAT_STAY),
        "RowLifetimeSuite.scala",
    ),
    Mutant(
        "space_of_rows_is_used_again_at_once",
        "table/Resting.scala",
        "first != null && first.epoch <= synchronized(oldestReader)",
        "first != null",
        ("rows that are given up are used again when their readers have ended, and no batch has to begin for that",),
        "RowLifetimeSuite.scala",
    ),
    Mutant(
        "pages_are_given_back_at_once",
        "table/Resting.scala",
        "!pages.isEmpty && pages.peekFirst()._1 <= oldest",
        "!pages.isEmpty && oldest != 0L",
        (KEEPS_BYTES,),
    ),
    Mutant(
        "an_open_that_left_another_table_counts_as_left",
        "LiveTable.scala",
        "if (open.table eq this) open.table = null",
        "open.table = null",
        ("an open that was upgraded to another table keeps its transaction when the one it read first is closed",),
        "OwnershipSuite.scala",
    ),
    Mutant(
        "readers_are_not_stale_when_the_table_moves",
        "LaminaStateStore.scala",
        "(if (writing) live.writer ne open else live.generation != generation)",
        "(writing && (live.writer ne open))",
        (READS,),
    ),
    Mutant(
        "values_go_on_in_the_table_that_an_upgrade_left",
        "RowIterator.scala",
        "store.open.left || (store.live ne live)",
        "store.open.left",
        (OTHER_TABLE,),
        "RowLifetimeSuite.scala",
    ),
    Mutant(
        "a_walk_goes_on_in_the_table_that_an_upgrade_left",
        "RowIterator.scala",
        "    if ((store.live ne live) || from.table",
        "    if (from.table",
        (OTHER_TABLE,),
        "RowLifetimeSuite.scala",
    ),
    Mutant(
        "an_open_that_sends_at_its_end_never_leaves",
        "LiveTable.scala",
        "    if (open.leavesLater) leave(open)\n",
        "",
        (
            "a task that ends while its commit is sent keeps no rows from being used again once it is whole",
            "a task that ends while its commit is sent leaves no transaction behind if that fails",
        ),
        "StalledStorageSuite.scala",
    ),
    Mutant(
        "an_open_that_leaves_keeps_its_transaction",
        "LiveTable.scala",
        "    if (writer eq open) abort()\n",
        "",
        ("a task that ends while its commit is sent leaves no transaction behind if that fails",),
        "StalledStorageSuite.scala",
    ),
    Mutant(
        "the_end_of_a_task_does_not_abort",
        "LaminaStateStore.scala",
        "if (open.allows(TakeOver)) abort()\n          else if",
        "if",
        ("a task that ends without a commit has aborted its transaction: its store takes no change, and says so",),
        "OwnershipSuite.scala",
    ),
    # lists
    Mutant(
        "a_list_is_moved_before_there_is_room_to_say_where",
        "table/PageReclaim.scala",
        "    moved.ensure()\n    val copy = lists.copy(buffer)\n",
        "    val copy = lists.copy(buffer)\n",
        ("reclaim of lists that ends at the cap loses no element, and no version back",),
        "table/RowBookkeepingSuite.scala",
    ),
    Mutant(
        "what_a_list_outgrew_is_used_again_at_once",
        "table/ListBuffers.scala",
        "    resting.add(family, left, newRows = false)\n",
        "    family.freeRows(left, newRows = false, 0, left.size)\n    left.close()\n",
        ("what a list outgrew is used again when its readers have ended, and not before",),
        "table/ListAppendSuite.scala",
    ),
    Mutant(
        "the_version_before_keeps_what_a_list_outgrew",
        "table/FamilyTable.scala",
        "    lists.share(undo)\n",
        "",
        (
            "lists that are appended to in turns take at most half as much again after each transaction",
            "lists that are all appended to at once take at most half as much again after each transaction",
            "a list that outgrows its room several times in one transaction is in memory once after it, and steps back",
            "lists that grow by many appends in a transaction take no more than their bytes and a copy",
            "the first append to a list that was put or restored leaves no copy behind for the next transaction",
        ),
        "table/ListMemorySuite.scala",
    ),
    Mutant(
        "what_a_list_outgrew_stays_until_the_transaction_ends",
        "table/ListBuffers.scala",
        "if (Rows.views(buffer) == 1) pages.free(buffer) else left.add(buffer, 0L)",
        "left.add(buffer, 0L)",
        (
            "lists that grow by many appends in a transaction take no more than their bytes and a copy",
            "lists that are put and grow in a transaction take no more than their bytes and a copy",
        ),
        "table/ListMemorySuite.scala",
    ),
    Mutant(
        "a_list_moves_although_it_was_handed_out",
        "table/ListBuffers.scala",
        "Rows.isView(row) && (Rows.flags(row) & (Rows.Own | Rows.Read)) == Rows.Own",
        "Rows.isView(row) && Rows.has(row, Rows.Own)",
        ("lists are what a map says after every step of a history, and so is what readers hold of them",),
        "table/ListHistorySuite.scala",
    ),
    Mutant(
        "values_that_are_copied_count_as_handed_out",
        "LaminaStateStore.scala",
        "    val row = find(keyRow, from, base, keeps = false)\n",
        "    val row = find(keyRow, from, base, keeps = true)\n",
        ("a list that is read after each append takes no more than its bytes and their copy",),
        "RowLifetimeSuite.scala",
    ),
    Mutant(
        "what_rests_is_counted_for_one_column_family",
        "table/Resting.scala",
        "added += log.size",
        "added = log.size",
        ("what transactions give up does not pile up in any column family, also without maintenance",),
        "table/RowBookkeepingSuite.scala",
    ),
    # undo
    Mutant(
        "an_abort_keeps_the_rows",
        "table/StoreTable.scala",
        "    families.values.foreach(_.abort())\n",
        "    families.values.foreach(_.commit())\n",
        (READS,),
    ),
    Mutant(
        "a_step_back_keeps_the_rows",
        "LiveTable.scala",
        "    try table.stepBack()\n",
        "    try ()\n",
        (READS,),
    ),
    Mutant(
        "a_failed_commit_is_not_taken_back",
        "TaskDurability.scala",
        "if (failure != null) live.rollBack(answer.attempt)",
        "if (failure == null) live.rollBack(Attempts.Empty)",
        (FAILED,),
    ),
    Mutant(
        "a_load_that_broke_off_on_top_keeps_what_came",
        "LiveTable.scala",
        "if (header.fromHave && miscount.isEmpty) table.abort()",
        "if (header.fromHave && miscount.isEmpty) table.commit()",
        ("a load that breaks off leaves the version that was there, or none, but never a part",),
        "LiveTableSuite.scala",
    ),
    # siblings
    Mutant(
        "siblings_with_other_changes_count_as_equal",
        "LiveTable.scala",
        " && other.digest == digest",
        "",
        (READS,),
    ),
    Mutant(
        "siblings_of_another_base_count",
        "LiveTable.scala",
        "before != null && other.base == before.content",
        "before != null",
        (READS,),
    ),
    Mutant(
        "an_attempt_newer_than_its_table_is_loaded_without_stepping_back",
        "LiveTable.scala",
        "if (oneBack.isDefined && (sibling.isDefined || position.version >= version)) setAside()",
        "if (oneBack.isDefined && sibling.isDefined) position = before",
        (READS, REASONS),
    ),
    # registry
    Mutant(
        "a_table_with_a_transaction_is_handed_over",
        "LiveTable.scala",
        "!closed && !isBusy && !isBroken && (position",
        "!closed && !isBroken && (position",
        (ONE_WRITER, REASONS),
    ),
    Mutant(
        "a_table_that_nobody_wants_is_not_closed",
        "TableRegistry.scala",
        "if (over) table.close()",
        "if (over) ()",
        (NOTHING_LEFT,),
    ),
    Mutant(
        "a_leaving_table_never_rests",
        "TableRegistry.scala",
        "    (Leaving, Rest) -> Parked,\n",
        "",
        (NOTHING_LEFT,),
    ),
    Mutant(
        "a_table_that_a_closed_provider_takes_is_in_use",
        "TableRegistry.scala",
        "if (taker.isClosed) entry.state = Leaving",
        "if (taker.isClosed) entry.state = InUse",
        (NOTHING_LEFT,),
    ),
    Mutant(
        "a_table_that_a_closed_provider_makes_is_in_use",
        "TableRegistry.scala",
        "if (owner.isClosed) Leaving else InUse",
        "InUse",
        (NOTHING_LEFT,),
    ),
    Mutant(
        "idle_tables_of_running_queries_give_way",
        "TableRegistry.scala",
        "idleOwners.iterator.filter(stopped)",
        "idleOwners.iterator.filter(owner => stopped(owner) || owner != null)",
        (RUNNING,),
    ),
    Mutant(
        "a_table_in_use_gives_way",
        "TableRegistry.scala",
        "val evicted = evict(_.state eq Parked, fits).orElse",
        "val evicted = evict(entry => (entry.state eq Parked) || (entry.state eq Idle), fits).orElse",
        (RUNNING,),
    ),
    Mutant(
        "a_table_that_moves_may_give_way",
        "StoreOpener.scala",
        "if (!registry.enter(table, this)) throw gone(table)",
        "if (!owns(table)) throw gone(table)",
        (REASONS, ONE_WRITER),
    ),
    Mutant(
        "a_table_that_is_read_is_given_up_for_another_one",
        "StoreOpener.scala",
        "(live.isBusy || live.hasReaders)",
        "live.isBusy",
        (READS_ON,),
    ),
    # accepted and durable
    Mutant(
        "a_task_ends_when_its_commits_are_accepted",
        "TaskDurability.scala",
        "    if (first) task.addTaskCompletionListener[Unit](ended => settle(ended, id))\n",
        "",
        (ENDS_DURABLE,),
    ),
    Mutant(
        "spark_is_told_the_id_that_an_attempt_was_begun_with",
        "Commits.scala",
        "} else Sent(answer.attempt, Some(next), Some(",
        "} else Sent(draft.begun.fold(answer.attempt)(_.attempt), Some(next), Some(",
        (ENDS_DURABLE,),
    ),
    # waits and turns
    Mutant(
        "a_second_writer_takes_over_at_once",
        "WriterTurns.scala",
        "val ended = writer != null && (writer.isOver || writer.isAbandonedBy(Thread.currentThread()))",
        "val ended = writer != null",
        (KEEPS_TRANSACTION,),
    ),
    Mutant(
        "an_open_does_not_wait_for_the_last_commit",
        "StoreOpener.scala",
        "if (pending == null) settled = true else pending.settleForOpen()",
        "settled = true",
        (REASONS,),
    ),
    Mutant(
        "a_writer_does_not_wait_for_those_who_read_on",
        "StoreOpener.scala",
        "    turns.awaitReaders(table, turns.deadline())\n",
        "",
        (READS_ON,),
    ),
    Mutant(
        "opens_do_not_take_turns",
        "StoreOpener.scala",
        "    scheduling.acquire(opening)\n    try open\n    finally opening.unlock()\n",
        "    open\n",
        (ONE_BY_ONE,),
    ),
    Mutant(
        "a_table_is_moved_under_its_lock",
        "StoreOpener.scala",
        "      move(table, version, base, source)\n",
        "      table.synchronized(move(table, version, base, source))\n",
        (NO_LOCK,),
    ),
    Mutant(
        "a_move_never_ends",
        "LiveTable.scala",
        "  def endMove(): Unit = if (moving) {\n    moving = false\n",
        "  def endMove(): Unit = if (moving) {\n",
        (REASONS, NO_WAIT),
    ),
    Mutant(
        "a_writer_may_change_rows_while_it_sends",
        "Opens.scala",
        "    (Sending, Commit) -> Committed,\n",
        "    (Sending, Commit) -> Writing,\n",
        (KEEPS_TRANSACTION, READS, ONE_WRITER),
    ),
]
