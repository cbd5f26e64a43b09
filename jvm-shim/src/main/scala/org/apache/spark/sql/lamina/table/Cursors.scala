package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/** Walks rows of a column family. Updates meanwhile are allowed and may or may not be seen. */
abstract class RowCursor {

  /** Whether the next row comes from the version that the open transaction is based on. */
  var base: Boolean

  /** The address of the next row, or 0 at the end. */
  def next(): Long

  /** To be called when nobody goes on with it. */
  def end(): Unit = ()
}

/**
 * May pass over keys that came since it began: then it goes by those that were there, as a walk of a snapshot does.
 *
 * @param passesNew whether it does
 */
private[table] abstract class FamilyCursor(family: FamilyTable, passesNew: Boolean) extends RowCursor {
  private val begun = if (passesNew) family.walks.begin() else -1

  /** The undo log, and how many of its entries are known. */
  private var log = if (passesNew) family.undoLog else null
  private var known = if (passesNew) log.size else 0
  private var newKeys: NewKeys = _

  /** Hears what has come and gone. */
  protected final def learn(): Unit = if (log != null && ((log ne family.undoLog) || known != log.size)) {
    if (newKeys == null) newKeys = new NewKeys
    log = family.tellWalk(newKeys, this, log, known)
    if (log != null) known = log.size
  }

  /** Whether a key that it comes to has come since it began, as far as it has heard. */
  protected final def isNew(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Boolean =
    newKeys != null && !newKeys.isEmpty && newKeys.has(KeyHash.hash(keyBase, keyOffset, keyLength))

  /** Whether it has come to a place behind that of a key: what becomes of that is nothing to it. */
  private[table] def hasPassed(key: Long, length: Int): Boolean

  override def end(): Unit = family.walks.end(begun)
}

/** All rows, in the order of the index. */
private[table] final class ScanCursor(family: FamilyTable, index: HashIndex, override var base: Boolean)
    extends RowCursor {
  private val buffer = new HashIndex.WordBuffer
  private val wasEmpty = !base && family.rows == 0
  private var started = false
  private var prefix = 0L
  private var position = 0

  override def next(): Long = {
    while (true) {
      while (position < buffer.count) {
        val word = buffer.words(position)
        position += 1
        if (word != 0L && word != HashIndex.Tombstone) {
          val row = family.seen(word, base)
          if (row != 0L) return row
        }
      }
      if (wasEmpty || (started && prefix == 0L)) return 0L
      started = true
      prefix = index.copySegment(prefix, buffer)
      position = 0
    }
    0L
  }
}

/**
 * Rows with from ≤ key < until in unsigned byte order; null leaves a side open. Copies the key that it has passed, and no
 * other: from there it finds its place again where keys came or went.
 */
private[table] final class RangeCursor(
    family: FamilyTable,
    keys: OrderedKeys,
    from: Array[Byte],
    until: Array[Byte],
    override var base: Boolean
) extends FamilyCursor(family, passesNew = !base) {
  import RangeCursor.Offset

  private var passed: Array[Byte] = _
  private var passedLength = 0
  private var place = if (from == null) keys.first else keys.find(from, Offset, from.length, above = false)
  private var changes = keys.changes
  private var ended = false

  override def next(): Long = {
    var row = 0L
    while (row == 0L && !ended) {
      if (keys.changes != changes) findAgain()
      val key = keys.keyAt(place)
      if (key == 0L) ended = true
      else {
        val length = Platform.getInt(null, key - 4)
        if (until != null && KeyOrder.compare(null, key, length, until, Offset, until.length) >= 0) ended = true
        else {
          if (!base) learn()
          pass(key, length)
          row =
            if (base) family.getBase(null, key, length)
            else if (isNew(null, key, length)) 0L
            else family.get(null, key, length)
        }
      }
    }
    row
  }

  override private[table] def hasPassed(key: Long, length: Int): Boolean =
    passed != null && KeyOrder.compare(null, key, length, passed, Offset, passedLength) <= 0

  private def pass(key: Long, length: Int): Unit = {
    if (passed == null || passed.length < length)
      passed = new Array[Byte](if (passed == null) length else math.max(length, 2 * passed.length))
    Platform.copyMemory(null, key, passed, Offset, length)
    passedLength = length
    place = keys.after(place)
  }

  private def findAgain(): Unit = {
    changes = keys.changes
    place =
      if (passed != null) keys.find(passed, Offset, passedLength, above = true)
      else if (from != null) keys.find(from, Offset, from.length, above = false)
      else keys.first
  }
}

private object RangeCursor {
  val Offset: Long = Platform.BYTE_ARRAY_OFFSET.toLong
}
