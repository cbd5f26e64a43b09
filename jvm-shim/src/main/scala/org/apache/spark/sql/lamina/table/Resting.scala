package org.apache.spark.sql.lamina.table

import java.util.ArrayDeque

import scala.collection.mutable

/**
 * What a table does not need any more and readers may still have in their hands: whole pages, and the rows that a
 * transaction replaced or that were taken back with it. They wait until every reader has ended that was active when
 * they were given up.
 *
 * Readers may end on any thread, without the table's lock, and give pages back with it; all else is done under that lock.
 */
private[table] final class Resting(pool: PagePool) {
  import Resting.RestingLog

  private val readers = mutable.LongMap.empty[Long]
  private val pages = new ArrayDeque[(Long, Page)]
  private val logs = new ArrayDeque[RestingLog]
  private var epoch = 0L

  /** Rows are being moved: until the logs follow, an address must name one row. */
  private var isHeld = false

  /** Entries of all logs that were added since `takeAdded`. */
  private var added = 0L

  /** Somebody starts to read rows under an id of their own choice. */
  def readersActive(id: Long): Unit = synchronized(readers(id) = epoch)

  /** Nobody reads rows under this id any more. */
  def readersEnded(id: Long): Unit = synchronized {
    readers.remove(id)
    releasePages()
  }

  def add(page: Page): Unit = synchronized(pages.addLast((nextEpoch(), page)))

  /** The rows of a log that nothing refers to any more: those before its transaction, or the new ones. */
  def add(family: FamilyTable, log: LongLog, newRows: Boolean): Unit = synchronized {
    if (log.isEmpty) log.close()
    else {
      added += log.size
      logs.addLast(new RestingLog(nextEpoch(), family, log, newRows))
    }
  }

  /** How many entries were given up since this was asked last. */
  def takeAdded(): Long = {
    val taken = added
    added = 0L
    taken
  }

  private def nextEpoch(): Long = {
    epoch += 1
    epoch
  }

  private def oldestReader: Long = if (readers.isEmpty) Long.MaxValue else readers.values.min

  /** From now on pages are kept, also those that nobody reads. */
  def hold(): Unit = synchronized { isHeld = true }

  /** Gives pages to the pool that nobody can read, now and from now on. */
  def release(): Unit = synchronized {
    isHeld = false
    releasePages()
  }

  private def releasePages(): Unit = if (!isHeld) {
    val oldest = oldestReader
    while (!pages.isEmpty && pages.peekFirst()._1 <= oldest) pool.give(pages.pollFirst()._2)
  }

  /** Lets the space of at most `limit` rows be used again; whether there are more that could be. */
  def freeRows(limit: Long): Boolean = {
    var left = limit
    while (left > 0 && isOver) {
      val first = logs.peekFirst()
      val until = first.done + math.min(first.log.size - first.done, left).toInt
      first.family.freeRows(first.log, first.newRows, first.done, until)
      left -= until - first.done
      first.done = until
      if (until == first.log.size) logs.pollFirst().log.close()
    }
    isOver
  }

  private def isOver: Boolean = {
    val first = logs.peekFirst()
    first != null && first.epoch <= synchronized(oldestReader)
  }

  /** Whether pages wait for readers. */
  def hasPages: Boolean = synchronized(!pages.isEmpty)

  /** Points the logs of a column family at rows that were moved. */
  def follow(family: FamilyTable, moved: MovedRows): Unit =
    logs.forEach(resting =>
      if (resting.family eq family)
        family.follow(resting.log, moved, resting.done, firsts = !resting.newRows, seconds = resting.newRows)
    )

  def pageBytes: Long = synchronized {
    var sum = 0L
    pages.forEach(page => sum += page._2.bytes)
    sum
  }

  def logBytes: Long = {
    var sum = 0L
    logs.forEach(resting => sum += resting.log.bytes)
    sum
  }

  /** The table gives up all its pages: with them the rows are gone. */
  def forgetRows(): Unit = {
    logs.forEach(_.log.close())
    logs.clear()
  }
}

private object Resting {
  private final class RestingLog(
      val epoch: Long,
      val family: FamilyTable,
      val log: LongLog,
      val newRows: Boolean
  ) {
    var done = 0
  }
}
