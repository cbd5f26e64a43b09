package org.apache.spark.sql.lamina.table

import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * From a row of the open transaction to the base version's row of its key. Made only when somebody reads the base meanwhile.
 *
 * The undo log says it; a map makes that fast. What the map has no memory for is searched in the log: so a look never fails at the cap.
 */
private[table] final class BaseRows(undo: LongLog, pool: PagePool) {
  private val before = new AddressMap(pool)

  /** So many entries of the log are in the map. */
  private var mapped = 0

  /** Memory was refused: from then on the map takes nobody else's, and is tried again after so many looks. */
  private var isShort = false
  private var untried = 0

  def bytes: Long = before.bytes

  /** 0 where the key was absent in the base version. */
  def of(row: Long): Long = {
    extend()
    var at = row
    // the row before was logged before
    var i = undo.size
    while (i > mapped && isOwn(at)) {
      i -= 1
      if (undo.second(i) == at) at = undo.first(i) & ~1L
    }
    while (isOwn(at)) at = before.get(at) & ~1L
    at
  }

  private def isOwn(row: Long): Boolean = row != 0L && Rows.has(row, Rows.Own)

  /** Takes in what was logged since, as far as there is memory. */
  private def extend(): Unit =
    if (untried > 0) untried -= 1
    else if (mapped < undo.size) {
      try if (isShort) PagePool.inBackground(extendAll()) else extendAll()
      catch {
        case error: LaminaError if error.kind == LaminaError.MemoryCap =>
          isShort = true
          untried = BaseRows.Untried
      }
    }

  private def extendAll(): Unit = while (mapped < undo.size) {
    if (undo.first(mapped) != 0L && undo.second(mapped) != 0L) before.put(undo.second(mapped), undo.first(mapped))
    mapped += 1
  }

  def close(): Unit = before.close()
}

private[table] object BaseRows {

  /** A refusal costs more than a look. */
  private val Untried = 1024
}

/** Where rows went when their page was reclaimed. */
private[table] final class MovedRows(pool: PagePool) {
  private val targets = new AddressMap(pool)

  def bytes: Long = targets.bytes

  def isEmpty: Boolean = targets.isEmpty

  /** Makes room for one more, so that `add` cannot fail. */
  def ensure(): Unit = targets.ensure()

  def add(from: Long, to: Long): Unit = targets.put(from, to)

  /** Where a row is now; it may have been moved several times. */
  def target(row: Long): Long = {
    var at = row
    var next = targets.get(at)
    while (next != 0L) {
      at = next
      next = targets.get(at)
    }
    at
  }

  def close(): Unit = targets.close()
}
