package org.apache.spark.sql.lamina

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair
import org.apache.spark.sql.lamina.table.{FamilyTable, RowCursor, Rows}

/** A column family as one open uses it. `table` is null where the version has no such family: it reads as empty. */
final class OpenFamily(val codec: FamilyCodec, val table: FamilyTable) {

  /** A fresh row of a row's key. */
  def key(row: Long): UnsafeRow = codec.decodeKey(Rows.keyAddress(row), Rows.keyLength(row))

  /** A fresh row of a row's value; of several values the first, or null where there is none. */
  def value(row: Long): UnsafeRow =
    codec.decodeValue(Rows.keyAddress(row), Rows.keyLength(row), Rows.valueAddress(row), Rows.valueLength(row))

  /** All values of a row. */
  def values(row: Long): Iterator[UnsafeRow] =
    codec.decodeValues(Rows.keyAddress(row), Rows.keyLength(row), Rows.valueAddress(row), Rows.valueLength(row))
}

/**
 * Walks a cursor for one open, taking the table's lock for each row and checking the open like any other call. The pair is
 * reused from row to row, its rows are not.
 *
 * @param cursor null where there is nothing to walk
 * @param multi whether each element of a value comes as a row of its own
 */
final class RowIterator(store: LaminaStateStore, from: OpenFamily, private var cursor: RowCursor, multi: Boolean)
    extends Iterator[UnsafeRowPair] {
  private val pair = new UnsafeRowPair()
  private val afterCommit = cursor != null && store.open.state == OpenState.Committed
  if (afterCommit) store.open.scans += 1
  private var elements: Iterator[UnsafeRow] = Iterator.empty
  private var keyRow: UnsafeRow = _
  private var valueRow: UnsafeRow = _

  override def hasNext: Boolean = valueRow != null || store.live.synchronized(advance())

  override def next(): UnsafeRowPair = {
    if (!hasNext) throw new NoSuchElementException("End of the iterator")
    pair.withRows(keyRow, valueRow)
    valueRow = null
    pair
  }

  private def advance(): Boolean = {
    if (cursor != null) {
      // A commit ends the transaction that the walk began in: it goes on with what was committed.
      cursor.base = store.reading()
      while (valueRow == null && cursor != null) {
        if (elements.hasNext) valueRow = elements.next()
        else {
          val row = cursor.next()
          if (row == 0L) close() else take(row)
        }
      }
      if (valueRow != null) store.validate(keyRow, valueRow)
    }
    valueRow != null
  }

  private def take(row: Long): Unit = {
    keyRow = from.key(row)
    if (multi) elements = from.values(row) else valueRow = from.value(row)
  }

  /** Ends the walk. Rows that were handed out stay readable like all others of the open. */
  def close(): Unit = store.live.synchronized {
    if (cursor != null && afterCommit) store.open.scans -= 1
    cursor = null
  }
}
