package org.apache.spark.sql.lamina.table

import java.util.ArrayDeque

import scala.collection.mutable

/**
 * What a table does not need any more and readers may still have in their hands: whole pages, and the rows that a
 * transaction replaced or that were taken back with it. They wait until every reader has ended that was active when
 * they were given up, and for the pool's quarantine after that.
 */
private[table] final class Resting(pool: PagePool) {
  import Resting.Rows

  private val readers = mutable.LongMap.empty[Long]
  private val pages = new ArrayDeque[(Long, Page)]
  private val rows = new ArrayDeque[Rows]
  private var epoch = 0L

  /** Entries of the log that was added last. */
  var lastAdded = 0

  /** Somebody starts to read rows under an id of their own choice. */
  def readersActive(id: Long): Unit = readers(id) = epoch

  /** Nobody reads rows under this id any more. */
  def readersEnded(id: Long): Unit = {
    readers.remove(id)
    startQuarantine()
  }

  def add(page: Page): Unit = pages.addLast((next(), page))

  /** The rows of a log that nothing refers to any more: those before its transaction, or the new ones. */
  def add(family: FamilyTable, log: LongLog, news: Boolean): Unit =
    if (log.isEmpty) log.close()
    else {
      lastAdded = log.size
      rows.addLast(new Rows(next(), family, log, news))
      startQuarantine()
    }

  private def next(): Long = {
    epoch += 1
    epoch
  }

  private def oldestReader: Long = if (readers.isEmpty) Long.MaxValue else readers.values.min

  /** The quarantine begins when the last reader has ended that may know of the rows. */
  private def startQuarantine(): Unit = {
    val oldest = oldestReader
    val end = pool.quarantineEndMs
    rows.forEach(resting => if (resting.untilMs == Long.MaxValue && resting.epoch <= oldest) resting.untilMs = end)
  }

  /** Hands pages to the pool that no reader can know of. */
  def releasePages(): Unit = {
    val oldest = oldestReader
    while (!pages.isEmpty && pages.peekFirst()._1 <= oldest) pool.retire(pages.pollFirst()._2)
  }

  /** Lets the space of at most `limit` rows be used again; whether there are more that could be. */
  def bury(limit: Int): Boolean = {
    var left = limit
    while (left > 0 && isOver(rows.peekFirst())) {
      val first = rows.peekFirst()
      val until = math.min(first.log.size, first.done + left)
      first.family.bury(first.log, first.news, first.done, until)
      left -= until - first.done
      first.done = until
      if (until == first.log.size) rows.pollFirst().log.close()
    }
    isOver(rows.peekFirst())
  }

  private def isOver(first: Rows): Boolean =
    first != null && first.untilMs <= pool.nowMs

  /** Points the logs of a column family at rows that were moved. */
  def follow(family: FamilyTable, moved: MovedRows): Unit =
    rows.forEach(resting =>
      if (resting.family eq family) resting.log.follow(moved, resting.done, !resting.news, resting.news)
    )

  def pageBytes: Long = {
    var sum = 0L
    pages.forEach(page => sum += page._2.bytes)
    sum
  }

  def logBytes: Long = {
    var sum = 0L
    rows.forEach(resting => sum += resting.log.bytes)
    sum
  }

  /** The table gives up all its pages: with them the rows are gone. */
  def forgetRows(): Unit = {
    rows.forEach(_.log.close())
    rows.clear()
  }
}

private object Resting {
  private final class Rows(
      val epoch: Long,
      val family: FamilyTable,
      val log: LongLog,
      val news: Boolean
  ) {
    var untilMs: Long = Long.MaxValue
    var done = 0
  }
}
