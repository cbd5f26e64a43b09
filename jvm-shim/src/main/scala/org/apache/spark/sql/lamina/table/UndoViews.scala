package org.apache.spark.sql.lamina.table

import scala.collection.mutable

/** From a row of the open transaction to the base version's row of its key. Made only when somebody reads the base meanwhile. */
private[table] final class BaseRows(undo: LongLog) {
  private val before = mutable.LongMap.empty[Long]
  private var seen = 0
  extend()

  def extend(): Unit = while (seen < undo.size) {
    if (undo.second(seen) != 0L) before(undo.second(seen)) = undo.first(seen)
    seen += 1
  }

  /** 0 where the key was absent in the base version. */
  def of(row: Long): Long = {
    var at = row
    while (at != 0L && Rows.has(at, Rows.Own)) at = before.getOrElse(at, 0L) & ~1L
    at
  }
}

/** Where rows went when their page was reclaimed. */
private[table] final class MovedRows {
  private val targets = mutable.LongMap.empty[Long]

  def isEmpty: Boolean = targets.isEmpty

  def add(from: Long, to: Long): Unit = targets(from) = to

  /** Where a row is now; it may have been moved several times. */
  def target(row: Long): Long = {
    var at = row
    var next = if (row == 0L) 0L else targets.getOrElse(row, 0L)
    while (next != 0L) {
      at = next
      next = targets.getOrElse(at, 0L)
    }
    at
  }
}
