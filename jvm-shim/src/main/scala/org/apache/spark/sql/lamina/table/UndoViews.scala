package org.apache.spark.sql.lamina.table

/** From a row of the open transaction to the base version's row of its key. Made only when somebody reads the base meanwhile. */
private[table] final class BaseRows(undo: LongLog, pool: PagePool) {
  private val before = new AddressMap(pool)
  private var seen = 0

  def bytes: Long = before.bytes

  /** 0 where the key was absent in the base version. */
  def of(row: Long): Long = {
    extend()
    var at = row
    while (at != 0L && Rows.has(at, Rows.Own)) at = before.get(at) & ~1L
    at
  }

  /** Takes in what was logged since. */
  private def extend(): Unit = while (seen < undo.size) {
    if (undo.first(seen) != 0L && undo.second(seen) != 0L) before.put(undo.second(seen), undo.first(seen))
    seen += 1
  }

  def close(): Unit = before.close()
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
