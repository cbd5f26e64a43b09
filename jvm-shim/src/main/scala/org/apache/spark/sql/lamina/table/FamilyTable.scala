package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/**
 * The rows of one column family: hash index, pages, ordered keys, and the undo logs of the open and of the last transaction.
 *
 * An undo entry is (state of the key before, new row). The state before is 0 where the key was absent, else the row's
 * address, with the lowest bit set where the row was removed in the same transaction. The new row is 0 for a removal.
 * Entries name keys by their rows, not by slots, so the index may grow and rows may move at any time.
 *
 * Not thread-safe. Called by [[StoreTable]] and by the provider under the store's lock.
 */
final class FamilyTable private[table] (
    val id: Int,
    val ordered: Boolean,
    val multiValue: Boolean,
    pool: PagePool,
    resting: Resting
) {
  import HashIndex.{isRemoved, rowOf}

  private val index = new HashIndex(pool)
  private val pages =
    new FamilyPages(pool, resting, if (multiValue) FamilyPages.DeadListPercent else FamilyPages.DeadPercent)
  private val keys = if (ordered) new OrderedKeys(pool) else null
  private var undo = new LongLog(pool)
  private var previous = new LongLog(pool)
  private var baseRows: BaseRows = _
  private val counts = new RowCounts
  private val lists = new ListBuffers(pages, pool, multiValue)
  private val reclaim = new PageReclaim(index, pages, lists, multiValue)

  /** Fills an empty column family. */
  private[lamina] val filling = new FamilyFill(index, lists, keys, counts, pool)

  def rows: Long = counts.rows

  def keyValueBytes: Long = counts.bytes

  /** The row of a key as the open transaction sees it, or 0. The caller's readers may keep it and its value's address. */
  def get(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Long = {
    val row = find(keyBase, keyOffset, keyLength)
    if (row == 0L) 0L else handOut(row)
  }

  /** The same row; until the transaction ends its value's address is good no longer than the store's lock is held. */
  def find(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Long = {
    val word = index.find(KeyHash.hash(keyBase, keyOffset, keyLength), keyBase, keyOffset, keyLength)
    if (word == 0L || isRemoved(word)) 0L else rowOf(word)
  }

  /** The row of a key in the version that the open transaction is based on, or 0. */
  def getBase(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Long =
    base(index.find(KeyHash.hash(keyBase, keyOffset, keyLength), keyBase, keyOffset, keyLength))

  def put(
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int
  ): Unit = {
    val hash = KeyHash.hash(keyBase, keyOffset, keyLength)
    undo.ensure()
    index.ensure(hash)
    val word = index.find(hash, keyBase, keyOffset, keyLength)
    if (word == 0L || isRemoved(word) || !overwrite(rowOf(word), valueBase, valueOffset, valueLength))
      insert(hash, word, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength, 0)
  }

  /** Appends encoded elements to a key's value, which is empty where the key is absent. */
  def append(
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int
  ): Unit = {
    val hash = KeyHash.hash(keyBase, keyOffset, keyLength)
    undo.ensure()
    index.ensure(hash)
    val word = index.find(hash, keyBase, keyOffset, keyLength)
    if (word == 0L || isRemoved(word)) {
      // Put again after a removal it replaces what the base has; else it appends to nothing.
      val replaces = word != 0L && Rows.has(rowOf(word), Rows.Removed) && !isFreshOwn(rowOf(word))
      val flags = if (replaces) 0 else Rows.Appended
      insert(hash, word, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength, flags)
    } else if (valueLength > 0) {
      val old = rowOf(word)
      val own = Rows.has(old, Rows.Own)
      if (own && lists.extend(old, valueBase, valueOffset, valueLength)) counts.bytes += valueLength
      else {
        val appended = if (!own || Rows.has(old, Rows.Appended)) Rows.Appended else 0
        val base = if (own) Rows.listBase(old) else Rows.valueLength(old)
        replace(hash, word, lists.append(old, base, Rows.Own | appended, valueBase, valueOffset, valueLength))
      }
    }
  }

  /** Removes a key; false where it was absent. */
  def remove(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Boolean = {
    undo.ensure()
    val word = index.find(KeyHash.hash(keyBase, keyOffset, keyLength), keyBase, keyOffset, keyLength)
    if (word == 0L || isRemoved(word)) false
    else {
      val row = rowOf(word)
      index.update(row, removed = true)
      Rows.setFlags(row, Rows.Removed)
      undo.add(row, 0L)
      counts.remove(row)
      true
    }
  }

  /** All rows, in no order. Rows that come while it runs may be seen, but none where there were none at its start. */
  def scan(startsAtBase: Boolean): RowCursor = new ScanCursor(this, index, startsAtBase)

  /** Each row whose key's hash is in a part of the hashes; reads no more of the index than holds that part. */
  private[table] def foreachIn(part: Int, parts: Int)(visit: Long => Unit): Unit = if (rows > 0) {
    val buffer = new HashIndex.WordBuffer
    var prefix = KeyHash.first(part, parts)
    var more = true
    while (more) {
      prefix = index.copySegment(prefix, buffer)
      var i = 0
      while (i < buffer.count) {
        val word = buffer.words(i)
        if (word != 0L && word != HashIndex.Tombstone && !isRemoved(word)) {
          val row = rowOf(word)
          if (KeyHash.part(KeyHash.hash(null, Rows.keyAddress(row), Rows.keyLength(row)), parts) == part) visit(row)
        }
        i += 1
      }
      more = prefix != 0L && KeyHash.part(prefix, parts) == part
    }
  }

  /** Rows with from ≤ key < until in unsigned byte order; null leaves a side open. */
  def range(from: Array[Byte], until: Array[Byte], startsAtBase: Boolean): RowCursor = {
    if (!ordered) throw new IllegalArgumentException(s"column family $id keeps no order")
    new RangeCursor(this, keys, from, until, startsAtBase)
  }

  // ---- transaction, called by StoreTable

  private[table] def dropAll(): Unit = {
    val cursor = scan(startsAtBase = false)
    var row = cursor.next()
    while (row != 0L) {
      remove(null, Rows.keyAddress(row), Rows.keyLength(row))
      row = cursor.next()
    }
  }

  /** Each key whose state differs from the base once; stops early when `visit` says false. */
  private[table] def foreachChange(visit: (Byte, Long) => Boolean): Unit = {
    var i = 0
    var go = true
    while (go && i < undo.size) {
      val row = undo.second(i)
      val before = undo.first(i)
      if (row != 0L) {
        if (!Rows.has(row, Rows.Superseded | Rows.Removed) && !sameAsBase(before, row)) {
          go = visit(if (Rows.has(row, Rows.Appended)) Ops.Append else Ops.Put, row)
        }
      } else if (!Rows.has(before, Rows.Superseded) && !isFreshOwn(before)) {
        go = visit(Ops.Delete, before)
      }
      i += 1
    }
  }

  /** Adds what the last transaction left of each key that it touched: its row, or that there is none. While none is open. */
  private[table] def addLastTo(digest: Digest): Unit = {
    var i = 0
    while (i < previous.size) {
      val after = previous.second(i)
      val named = if (after != 0L) after else previous.first(i) & ~1L
      val key = Rows.keyAddress(named)
      val length = Rows.keyLength(named)
      val word = index.find(KeyHash.hash(null, key, length), null, key, length)
      // A key's last entry is the one whose row the index has; of a removal it may have forgotten the row.
      val isAbsent = word == 0L || isRemoved(word)
      if (isAbsent == (after == 0L) && (word == 0L || rowOf(word) == named)) {
        if (isAbsent) digest.add(id, Ops.Delete, key, length, 0L, 0)
        else digest.add(id, Ops.Put, key, length, Rows.valueAddress(named), Rows.valueLength(named))
      }
      i += 1
    }
  }

  private[table] def commit(): Unit = {
    lists.share(undo)
    lists.rest(this, resting)
    dropPrevious()
    var i = 0
    while (i < undo.size) {
      val row = undo.second(i)
      val before = undo.first(i)
      if (row != 0L) Rows.clearFlags(row, TransactionFlags)
      if (before != 0L && (before & 1L) == 0L) {
        Rows.clearFlags(before, TransactionFlags)
        Rows.setFlags(before, Rows.Held)
      }
      i += 1
    }
    previous = undo
    undo = new LongLog(pool)
    closeBaseRows()
  }

  private[table] def abort(): Unit = {
    lists.rest(this, resting)
    rewind(undo)
    undo = new LongLog(pool)
    closeBaseRows()
  }

  private[table] def stepBack(): Unit = {
    rewind(previous)
    previous = new LongLog(pool)
  }

  /** Takes a transaction back; the rows that it made are kept for those who read them. */
  private def rewind(log: LongLog): Unit = {
    var i = log.size - 1
    while (i >= 0) {
      val before = log.first(i)
      val after = log.second(i)
      val named = if (after != 0L) after else before & ~1L
      val key = Rows.keyAddress(named)
      val length = Rows.keyLength(named)
      val hash = KeyHash.hash(null, key, length)
      val word = index.find(hash, null, key, length)
      if (word != 0L && !isRemoved(word)) counts.remove(rowOf(word))
      if (before == 0L) {
        if (word != 0L) index.erase()
        if (ordered) keys.remove(null, key, length)
      } else {
        val row = before & ~1L
        val removed = (before & 1L) != 0L
        if (word == 0L) {
          index.ensure(hash)
          index.find(hash, null, key, length)
          index.insert(hash, row, removed)
          if (ordered) keys.add(null, key, length)
        } else index.update(row, removed)
        if (removed) Rows.clearFlags(row, Rows.Superseded)
        else {
          Rows.clearFlags(row, Rows.Superseded | Rows.Removed | Rows.Held)
          counts.add(row)
        }
      }
      if (after != 0L) Rows.setFlags(after, Rows.Held)
      i -= 1
    }
    resting.add(this, log, newRows = true)
  }

  /** The rows of a log that has rested: those before its transaction, or the new ones. */
  private[table] def freeRows(log: LongLog, newRows: Boolean, from: Int, until: Int): Unit = {
    var i = from
    while (i < until) {
      val row = if (newRows) log.second(i) else log.first(i)
      if (row != 0L && (row & 1L) == 0L) lists.free(row)
      i += 1
    }
  }

  private[table] def reserve(rows: Long): Unit = index.reserve(rows)

  // ---- maintenance

  /** Moves the live rows out of the page with the most dead ones; false where there is nothing to gain. */
  private[table] def reclaimPage(moved: MovedRows): Boolean = reclaim.reclaimPage(moved)

  /** Points the undo log of the last transaction at rows that were moved. */
  private[table] def follow(moved: MovedRows): Unit = follow(previous, moved, from = 0, firsts = true, seconds = true)

  /** The same for a log of this column family that rests. */
  private[table] def follow(log: LongLog, moved: MovedRows, from: Int, firsts: Boolean, seconds: Boolean): Unit =
    reclaim.follow(log, moved, from, firsts, seconds)

  /** Bytes that the open transaction wrote elsewhere, as lists outgrew their room. */
  private[table] def leftBytes: Long = lists.leftBytes

  private[table] def deadBytes: Long = pages.deadBytes
  private[table] def liveBytes: Long = pages.usedBytes - pages.deadBytes
  private[table] def pageBytes: Long = pages.pageBytes
  private[table] def indexBytes: Long = index.bytes
  private[table] def undoBytes: Long =
    undo.bytes + previous.bytes + filling.bytes + lists.bytes + (if (baseRows == null) 0L else baseRows.bytes)
  private[table] def orderedBytes: Long = if (ordered) keys.bytes else 0L

  private[table] def close(): Unit = {
    index.close()
    pages.close()
    if (ordered) keys.close()
    undo.close()
    previous.close()
    lists.close()
    closeBaseRows()
    filling.close()
    counts.clear()
  }

  /** Drops the undo log of the last transaction: what it removed is gone, what it replaced rests. */
  private[table] def dropPrevious(): Unit = {
    var i = 0
    while (i < previous.size) {
      val before = previous.first(i)
      if (previous.second(i) == 0L && before != 0L && (before & 1L) == 0L) {
        val word = index.findKeyOf(before)
        if (word != 0L && isRemoved(word) && rowOf(word) == before) {
          index.erase()
          if (ordered) keys.remove(null, Rows.keyAddress(before), Rows.keyLength(before))
        }
      }
      i += 1
    }
    resting.add(this, previous, newRows = false)
  }

  // ---- parts

  private val TransactionFlags =
    Rows.Own | Rows.Read | Rows.Fresh | Rows.Superseded | Rows.Appended | Rows.Removed

  /** Writes a value where it is, or finds it there already; false where a new row is needed. */
  private def overwrite(row: Long, valueBase: AnyRef, valueOffset: Long, valueLength: Int): Boolean = {
    val length = Rows.valueLength(row)
    if (length == valueLength && KeyHash.same(null, Rows.valueAddress(row), valueBase, valueOffset, length)) {
      // An own row that is so far an append of its base stays one: the result is the same.
      true
    } else if (
      !multiValue && (Rows.flags(row) & (Rows.Own | Rows.Read)) == Rows.Own &&
      Rows.padded(length) == Rows.padded(valueLength)
    ) {
      Platform.copyMemory(valueBase, valueOffset, null, Rows.valueAddress(row), valueLength)
      Rows.setValueLength(row, valueLength)
      counts.bytes += valueLength - length
      true
    } else false
  }

  /** A new own row of a key whose slot `find` found with `word`. */
  private def insert(
      hash: Long,
      word: Long,
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int,
      flags: Int
  ): Unit = {
    val row = lists.create(keyBase, keyOffset, keyLength, valueLength, Rows.Own | flags)
    Platform.copyMemory(valueBase, valueOffset, null, Rows.valueAddress(row), valueLength)
    replace(hash, word, row)
  }

  /** Puts a new own row into the slot that `find` found with `word`, and logs it. */
  private def replace(hash: Long, word: Long, row: Long): Unit = {
    if (word == 0L) {
      Rows.setFlags(row, Rows.Fresh)
      if (ordered) keys.add(null, Rows.keyAddress(row), Rows.keyLength(row))
      index.insert(hash, row, removed = false)
      undo.add(0L, row)
    } else {
      val old = rowOf(word)
      if (isRemoved(word)) {
        if (Rows.has(old, Rows.Removed)) {
          if (isFreshOwn(old)) Rows.setFlags(row, Rows.Fresh)
          Rows.setFlags(old, Rows.Superseded)
          undo.add(old | 1L, row)
        } else {
          // Removed by the transaction before this one, whose undo log alone still knows the old row.
          Rows.setFlags(row, Rows.Fresh)
          undo.add(0L, row)
        }
      } else {
        if (Rows.has(old, Rows.Own)) {
          Rows.setFlags(old, Rows.Superseded)
          if (Rows.has(old, Rows.Fresh)) Rows.setFlags(row, Rows.Fresh)
        }
        counts.remove(old)
        undo.add(old, row)
      }
      index.update(row, removed = false)
    }
    counts.add(row)
  }

  private def closeBaseRows(): Unit = if (baseRows != null) {
    baseRows.close()
    baseRows = null
  }

  private def handOut(row: Long): Long = {
    if ((Rows.flags(row) & (Rows.Own | Rows.Read)) == Rows.Own) Rows.setFlags(row, Rows.Read)
    row
  }

  private def isFreshOwn(row: Long): Boolean = (Rows.flags(row) & (Rows.Own | Rows.Fresh)) == (Rows.Own | Rows.Fresh)

  private def sameAsBase(before: Long, row: Long): Boolean = (before & 1L) != 0L && {
    val old = before & ~1L
    !Rows.has(old, Rows.Own) && Rows.valueLength(old) == Rows.valueLength(row) &&
    KeyHash.same(null, Rows.valueAddress(old), null, Rows.valueAddress(row), Rows.valueLength(row))
  }

  /** The base version's row for a slot's word. */
  private def base(word: Long): Long = {
    if (word == 0L) 0L
    else {
      val row = rowOf(word)
      val flags = Rows.flags(row)
      if ((flags & Rows.Own) != 0) {
        if (baseRows == null) baseRows = new BaseRows(undo, pool)
        baseRows.of(row)
      } else if (isRemoved(word) && (flags & Rows.Removed) == 0) 0L
      else row
    }
  }

  /** The row that a slot's word, copied a while ago, leads to, or 0; the transaction that wrote it may have ended. */
  private[table] def seen(word: Long, inBase: Boolean): Long = {
    val row = rowOf(word)
    val found =
      if (!inBase) if (isRemoved(word)) 0L else row
      else if (isRemoved(word) || Rows.has(row, Rows.Own)) getBase(null, Rows.keyAddress(row), Rows.keyLength(row))
      else row
    if (found == 0L) 0L else handOut(found)
  }
}
