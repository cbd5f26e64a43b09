package org.apache.spark.sql.lamina

import java.util.concurrent.TimeUnit

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.lamina.errors.LaminaError

/** One writer at a time: those that come later wait, and one that cannot go on is taken over by abort. */
private[lamina] final class WriterTurns(id: StateStoreId, scheduling: Scheduling) extends Logging {
  import WriterTurns._

  /** Until when an open that begins now waits, on the clock of the scheduling. */
  def deadline(): Long = scheduling.nanoTime() + TimeUnit.MILLISECONDS.toNanos(TimeoutMs)

  /**
   * Waits until the table has no writer, or is no more its opener's. Under its lock, which is given back meanwhile.
   *
   * @param isOwned whether the table is still that of who waits: another provider's writer is none of its business
   * @throws LaminaError `store.state` at the deadline, or where waiting would be for this very task
   */
  def await(table: LiveTable, deadline: Long, isOwned: () => Boolean): Unit = {
    if (isOwned()) takeOverIfEnded(table)
    while (isOwned() && table.writer != null) {
      if (scheduling.nanoTime() > deadline || isMine(table.writer)) {
        throw new LaminaError(
          LaminaError.StoreState,
          s"$id is being written by ${table.writer}, and a second writer waits for its task to end for $TimeoutMs ms " +
            "at most; end that task, or look for a query that runs twice"
        )
      }
      scheduling.await(table, PollMs)
      if (isOwned()) takeOverIfEnded(table)
    }
  }

  /**
   * Waits while tasks read on what they have committed, until the deadline at most: a table that moves takes their rows.
   * Two actions on one batch may run side by side. Under the table's lock, which is given back meanwhile.
   */
  def awaitReaders(table: LiveTable, deadline: Long): Unit =
    while (table.isReadOnBesides(TaskContext.get()) && scheduling.nanoTime() < deadline)
      scheduling.await(table, PollMs)

  /**
   * Aborts a writer that cannot go on: its task has ended, or this thread, which would have to, opens the store again.
   */
  def takeOverIfEnded(table: LiveTable): Unit = {
    val writer = table.writer
    val ended = writer != null && (writer.isOver || writer.isAbandonedBy(Thread.currentThread()))
    if (ended && writer.allows(OpenAction.TakeOver)) {
      logWarning(s"$id: the transaction of $writer is taken over by abort")
      writer.transition(OpenAction.TakeOver)
      table.abort()
      if (writer.task == null) table.leave(writer)
    }
  }
}

private[lamina] object WriterTurns {

  /** How long a second writer waits: as long as Spark's own provider does. */
  private val TimeoutMs = 60000L

  /** The end of a task is not signalled, so it is looked for. */
  private val PollMs = 20L

  /** Whether waiting for a writer would be waiting for oneself. */
  private def isMine(writer: Open): Boolean = {
    val task = TaskContext.get()
    task != null && writer.task != null && writer.task.taskAttemptId() == task.taskAttemptId()
  }
}
