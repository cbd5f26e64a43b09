package org.apache.spark.sql.lamina

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair
import org.apache.spark.sql.lamina.table.{FamilyTable, RowCursor, Rows}

/** A column family as one open uses it. `table` is null where the version has no such family: it reads as empty. */
final class OpenFamily(val codec: FamilyCodec, val table: FamilyTable) {

  /** Whether rows of a scan may be read where they are, for longer than the step that gave them. */
  def scansInPlace: Boolean = codec.readsInPlace && !table.rowsMayGo

  /** A fresh row of a row's key. */
  def key(row: Long): UnsafeRow = codec.decodeKey(Rows.keyAddress(row), Rows.keyLength(row))

  /** A fresh row of a row's value; of several values the first, or null where there is none. */
  def value(row: Long): UnsafeRow =
    codec.decodeValue(Rows.keyAddress(row), Rows.keyLength(row), Rows.valueAddress(row), Rows.valueLength(row))

  /** Whether a row is a list that the open transaction wrote: where its values lie may change with each call. */
  def isGrowing(row: Long): Boolean = codec.multiValue && Rows.isOwn(row)

  /** All values of a row that is growing, as it is now, each as it lies when it is asked for. */
  def growingValues(row: Long): Iterator[UnsafeRow] = new Iterator[UnsafeRow] {
    private val bytes = Rows.valueLength(row)
    private var at = 0

    override def hasNext: Boolean = at < bytes

    override def next(): UnsafeRow = {
      val address = Rows.valueAddress(row) + at
      val value = codec.decodeValue(Rows.keyAddress(row), Rows.keyLength(row), address, bytes - at)
      at += codec.elementBytes(address)
      value
    }
  }

  /** All values of a row. */
  def values(row: Long): Iterator[UnsafeRow] =
    codec.decodeValues(Rows.keyAddress(row), Rows.keyLength(row), Rows.valueAddress(row), Rows.valueLength(row))

  /** The same of a row that may go: they are copied at once, in one piece, and decoded when they are asked for. */
  def copiedValues(row: Long): Iterator[UnsafeRow] =
    codec.decodeCopiedValues(Rows.keyAddress(row), Rows.keyLength(row), Rows.valueAddress(row), Rows.valueLength(row))
}

private object OpenFamily {
  def copied(row: UnsafeRow): UnsafeRow = if (row == null || row.getBaseObject != null) row else row.copy()
}

/**
 * Walks a cursor for one open. It takes the table's lock for some rows at a time, ever more of them up to a bound (for
 * each where rows are not read in place), and then checks the open like any other call; in between, an open that came
 * into another state or whose rows were given up is noticed. Threads that may not read rows in place take the lock for each
 * row, and copy it. The pair is reused from row to row, its rows are not.
 *
 * It belongs to the table that it was begun on, and ends where an upgrade makes its open go on with another one.
 *
 * @param cursor null where there is nothing to walk
 * @param multi whether each element of a value comes as a row of its own
 */
final class RowIterator(store: LaminaStateStore, from: OpenFamily, private var cursor: RowCursor, multi: Boolean)
    extends Iterator[UnsafeRowPair] {
  private val live = store.live
  private val pair = new UnsafeRowPair()
  private val afterCommit = cursor != null && store.open.state == OpenState.Committed
  if (afterCommit) store.open.scans += 1

  /** Rows that were fetched, of which those before `position` were handed out, and the open's state at its last check. */
  private var ahead = RowIterator.NoRows
  private var position = 0
  private var count = 0
  private var checked: OpenState = _

  /** The row that was handed out last, its key, and its value or the one element of it. */
  private var row = 0L
  private var elements: Iterator[UnsafeRow] = Iterator.empty
  private var keyRow: UnsafeRow = _
  private var valueRow: UnsafeRow = _

  override def hasNext: Boolean = valueRow != null || advance()

  override def next(): UnsafeRowPair = {
    if (!hasNext) throw new NoSuchElementException("End of the iterator")
    pair.withRows(keyRow, valueRow)
    valueRow = null
    pair
  }

  private def isAhead: Boolean = position < count || elements.hasNext

  private def advance(): Boolean = {
    if (isAhead && from.scansInPlace && store.open.readsInPlace && (store.open.state eq checked) && !store.open.left)
      step()
    if (valueRow == null && (isAhead || cursor != null)) live.synchronized(checkAndStep())
    valueRow != null
  }

  private def checkAndStep(): Unit = {
    // A commit ends the transaction that the walk began in: it goes on with what was committed.
    val base = store.reading()
    // an upgrade may have loaded the table anew, whose families then are others
    if ((store.live ne live) || from.table != null && !live.table.has(from.table)) throw store.stale()
    checked = store.open.state
    if (isAhead && store.open.left) throw store.stale()
    step()
    while (valueRow == null && cursor != null) {
      cursor.base = base
      fetch()
      step()
      // only now is the row's address good in any case
      if (valueRow != null) store.validate(keyRow, valueRow, from, row)
    }
  }

  /** Fetches rows together, so that the processor waits for several of them at once. */
  private def fetch(): Unit = {
    val most = if (from.scansInPlace) RowIterator.MostRows else 1
    if (count == ahead.length && count < most) ahead = new Array[Long](math.min(most, math.max(2, 2 * count)))
    position = 0
    count = 0
    while (count < ahead.length && cursor != null) {
      val row = cursor.next()
      if (row == 0L) exhausted()
      else {
        ahead(count) = row
        count += 1
      }
    }
  }

  /** Takes the next row of those fetched, if any is left. */
  private def step(): Unit =
    while (valueRow == null && isAhead) {
      if (elements.hasNext) valueRow = store.handOut(elements.next())
      else {
        row = ahead(position)
        position += 1
        keyRow = store.handOut(from.key(row))
        if (!multi) valueRow = store.handOut(from.value(row))
        else elements = if (live.isLayered) from.copiedValues(row) else from.values(row)
      }
    }

  private def exhausted(): Unit = {
    if (afterCommit) store.open.scans -= 1
    cursor.end()
    cursor = null
  }

  /** Ends the walk. Rows that were handed out stay readable like all others of the open. */
  def close(): Unit = live.synchronized {
    if (cursor != null) exhausted()
    position = count
    elements = Iterator.empty
  }
}

/**
 * The values of a row, for one open: refused once that has given its rows up, or has gone on with another table. Those of a
 * list that is growing are copied, so that what it outgrows need not be kept for them, and so are those of a row that may go.
 * It is made under the table's lock.
 */
final class ValuesIterator(store: LaminaStateStore, from: OpenFamily, row: Long) extends Iterator[UnsafeRow] {
  private val live = store.live
  private val isGrowing = !live.isLayered && from.isGrowing(row)
  private val elements =
    if (live.isLayered) from.copiedValues(row) else if (isGrowing) from.growingValues(row) else from.values(row)

  override def hasNext: Boolean = elements.hasNext

  override def next(): UnsafeRow =
    if (!isGrowing && from.codec.readsInPlace && store.open.readsInPlace && !isStale) elements.next()
    else
      live.synchronized {
        if (isStale) throw store.stale()
        if (isGrowing) OpenFamily.copied(elements.next()) else store.handOut(elements.next())
      }

  private def isStale: Boolean = store.open.left || (store.live ne live)
}

private object RowIterator {
  private val NoRows = Array.emptyLongArray
  private val MostRows = 64
}
