package org.apache.spark.sql.lamina.table

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/**
 * Finds rows by key: an off-heap open-addressing array of 8-byte slots, in segments.
 *
 * {{{
 * slot = hash tag 18 bits | row address / 8, 45 bits | removed 1 bit
 * 0 = never used, 1 = tombstone
 * }}}
 * The top bits of a key's hash choose a segment by a directory that doubles (extendible hashing), the tag is the low bits. A
 * slot's place in its segment follows from the tag alone, so a segment grows, to the next size of a cell, in one pass over its slots
 * without reading a key. Only splitting a full segment reads the keys of its rows. No step touches more than one segment.
 *
 * No row lies above what 45 bits can say: [[Chunk]] refuses such memory.
 *
 * A removed slot still finds its row (the key is absent, but may be put again or the removal undone).
 */
private[table] final class HashIndex(pool: PagePool) {
  import HashIndex._

  private var depth = 0
  private var segmentBytes = 0L
  private var directory: Array[Segment] = Array(newSegment(MinCapacity, 0))

  /** Set by `find`: where the key was found, or where it may be inserted. */
  private var slot = 0L
  private var segment: Segment = _

  def bytes: Long = segmentBytes

  /** The slot's word for a key, or 0 where there is none. A word of a removed row has its lowest bit set. */
  def find(hash: Long, base: AnyRef, offset: Long, length: Int): Long = {
    val s = segmentOf(hash)
    segment = s
    val wanted = (hash & TagMask) << TagShift
    val end = s.address + s.capacity * 8L
    var at = firstSlot(s, hash)
    var insert = 0L
    while (true) {
      val word = Platform.getLong(null, at)
      if (word == 0L) {
        slot = if (insert != 0L) insert else at
        return 0L
      }
      if (word == Tombstone) {
        if (insert == 0L) insert = at
      } else if ((word & TagPart) == wanted) {
        val row = rowOf(word)
        if (Rows.keyLength(row) == length && KeyHash.same(null, Rows.keyAddress(row), base, offset, length)) {
          slot = at
          return word
        }
      }
      at += 8
      if (at == end) at = s.address
    }
    0L
  }

  /** `find` for the key of a row. */
  def findKeyOf(row: Long): Long = {
    val key = Rows.keyAddress(row)
    val length = Rows.keyLength(row)
    find(KeyHash.hash(null, key, length), null, key, length)
  }

  /** The word of the slot at which `find` begins. */
  def first(hash: Long): Long = Platform.getLong(null, firstSlot(segmentOf(hash), hash))

  private def firstSlot(s: Segment, hash: Long): Long = s.address + (((hash & TagMask) * s.capacity) >>> TagBits) * 8L

  /** Sets the row of the key that `find` found last. */
  def update(row: Long, removed: Boolean): Unit = {
    val word = Platform.getLong(null, slot)
    Platform.putLong(null, slot, (word & TagPart) | rowPart(row, removed))
  }

  /** Makes the slot that `find` found last a tombstone. */
  def erase(): Unit = {
    Platform.putLong(null, slot, Tombstone)
    segment.tombstones += 1
  }

  /** Makes room for one more key, so that `insert` cannot fail. Call before `find`. */
  def ensure(hash: Long): Unit = {
    var s = segmentOf(hash)
    while ((s.used + 1) * 4L > s.capacity * 3L) {
      grow(s, hash)
      s = segmentOf(hash)
    }
  }

  /** Inserts a key that the last `find` did not find. */
  def insert(hash: Long, row: Long, removed: Boolean): Unit = {
    if (Platform.getLong(null, slot) == Tombstone) segment.tombstones -= 1 else segment.used += 1
    Platform.putLong(null, slot, wordOf(hash, row, removed))
  }

  /** Gives memory back where most slots are empty; not between `find` and what goes by it. What cannot be had for that stays. */
  def shrink(): Unit =
    try PagePool.inBackground(directory.distinct.foreach { s =>
        val wanted = capacityFor(s.used - s.tombstones)
        if (wanted * 4L <= s.capacity) rebuild(s, wanted)
      })
    catch { case error: LaminaError if error.kind == LaminaError.MemoryCap => () }

  /** Prepares an empty index for a number of rows. */
  def reserve(rows: Long): Unit = {
    if (depth == 0 && directory(0).used == 0 && rows > MinCapacity / 2) {
      var d = 0
      while ((rows >>> d) > MaxCapacity / 3) d += 1
      val each = capacityFor(rows >>> d)
      val segments = newSegments(1 << d, each, d)
      close()
      depth = d
      directory = segments
    }
  }

  /** How many segments there are at most. */
  def parts: Int = directory.length

  /** Words of the segment that starts at a hash prefix, and the prefix after it; 0 after the last one. */
  def copySegment(prefix: Long, into: WordBuffer): Long = {
    val s = segmentOf(prefix)
    into.copy(s.address, s.capacity)
    if (s.depth == 0) 0L else ((prefix >>> (64 - s.depth)) + 1) << (64 - s.depth)
  }

  /** Each row that a slot names, removed ones too. */
  def foreachRow(visit: Long => Unit): Unit = {
    val buffer = new WordBuffer
    var prefix = 0L
    do {
      prefix = copySegment(prefix, buffer)
      buffer.foreachRow(visit)
    } while (prefix != 0L)
  }

  def close(): Unit = {
    var i = 0
    while (i < directory.length) {
      val s = directory(i)
      if (s.address != 0L) free(s)
      i += 1
    }
  }

  private def segmentOf(hash: Long): Segment =
    if (depth == 0) directory(0) else directory((hash >>> (64 - depth)).toInt)

  /** As many empty segments, of at least this capacity; none stays where there is no room for all. */
  private def newSegments(count: Int, capacity: Int, depth: Int): Array[Segment] = {
    val made = new Array[Segment](count)
    try {
      made.indices.foreach(i => made(i) = newSegment(capacity, depth))
      made
    } catch {
      case error: Throwable =>
        made.foreach(s => if (s != null) free(s))
        throw error
    }
  }

  private def newSegment(capacity: Int, depth: Int): Segment = {
    val bytes = pool.sizeFor(capacity * 8L)
    val address = pool.allocate(bytes)
    Platform.setMemory(address, 0.toByte, bytes)
    segmentBytes += bytes
    new Segment(address, (bytes / 8).toInt, depth)
  }

  private def free(s: Segment): Unit = {
    freeSlots(s.address, s.capacity)
    s.address = 0L
  }

  private def freeSlots(address: Long, capacity: Int): Unit = {
    pool.free(address, capacity * 8L)
    segmentBytes -= capacity * 8L
  }

  private def grow(s: Segment, hash: Long): Unit = {
    val live = s.used - s.tombstones
    val wanted = capacityFor(live + 1)
    if (wanted <= MaxCapacity) rebuild(s, wanted) else splitSegment(s, hash)
  }

  private def rebuild(s: Segment, capacity: Int): Unit = {
    val target = newSegment(capacity, s.depth)
    val old = s.address
    val oldCapacity = s.capacity
    var i = 0
    while (i < oldCapacity) {
      val word = Platform.getLong(null, old + i * 8L)
      if (word != 0L && word != Tombstone) place(target, word)
      i += 1
    }
    s.address = target.address
    s.capacity = target.capacity
    s.used = target.used
    s.tombstones = 0
    freeSlots(old, oldCapacity)
  }

  private def splitSegment(s: Segment, hash: Long): Unit = {
    if (s.depth == MaxDepth) {
      throw new LaminaError(
        LaminaError.StoreUnsupported,
        s"${s.used} keys of one column family share the first $MaxDepth bits of their hash, which the index cannot tell apart"
      )
    }
    val half = capacityFor((s.used - s.tombstones) / 2)
    val halves = newSegments(2, half, s.depth + 1)
    try spread(s, halves)
    catch { case error: Throwable => halves.foreach(free); throw error }
    val (low, high) = (halves(0), halves(1))
    if (s.depth == depth) {
      directory = Array.tabulate(directory.length * 2)(i => directory(i >> 1))
      depth += 1
    }
    val span = 1 << (depth - s.depth)
    val first = ((if (depth == 0) 0L else hash >>> (64 - depth)).toInt / span) * span
    var i = 0
    while (i < span) {
      directory(first + i) = if (i < span / 2) low else high
      i += 1
    }
    free(s)
  }

  /** Puts the slots of a segment into its two halves, by the next bit of their keys' hashes. */
  private def spread(s: Segment, halves: Array[Segment]): Unit = {
    var i = 0
    while (i < s.capacity) {
      val word = Platform.getLong(null, s.address + i * 8L)
      if (word != 0L && word != Tombstone) {
        val row = rowOf(word)
        val full = KeyHash.hash(null, Rows.keyAddress(row), Rows.keyLength(row))
        placeGrowing(halves((full >>> (63 - s.depth) & 1L).toInt), word)
      }
      i += 1
    }
  }

  private def placeGrowing(s: Segment, word: Long): Unit = {
    if ((s.used + 1) * 4L > s.capacity * 3L) rebuild(s, s.capacity + s.capacity / 4 + 1)
    place(s, word)
  }

  private def place(s: Segment, word: Long): Unit = {
    val end = s.address + s.capacity * 8L
    var at = s.address + (((word >>> TagShift) * s.capacity) >>> TagBits) * 8L
    while (Platform.getLong(null, at) != 0L) {
      at += 8
      if (at == end) at = s.address
    }
    Platform.putLong(null, at, word)
    s.used += 1
  }
}

private[table] object HashIndex {
  val TagBits: Int = 64 - (SystemMemory.AddressBits - 3) - 1
  val TagShift: Int = 64 - TagBits
  val TagMask: Long = (1L << TagBits) - 1
  val TagPart: Long = TagMask << TagShift
  val Tombstone = 1L
  val MinCapacity = 32

  /** Three segments in a page. */
  val MaxCapacity: Int = (PagePool.PageBytes / 3 / 8).toInt
  val MaxDepth = 28

  /** Slots for so many rows, of which they are two thirds; the pool rounds them up. */
  private def capacityFor(rows: Long): Int = math.max(MinCapacity.toLong, rows * 3 / 2 + 1).toInt

  private def rowPart(row: Long, removed: Boolean): Long = ((row >>> 3) << 1) | (if (removed) 1L else 0L)

  def wordOf(hash: Long, row: Long, removed: Boolean): Long = ((hash & TagMask) << TagShift) | rowPart(row, removed)

  def rowOf(word: Long): Long = ((word & ~TagPart) >>> 1) << 3

  /** Whether a word may name the row of a key with this hash. */
  def mayBe(word: Long, hash: Long): Boolean =
    (word & TagPart) == (hash & TagMask) << TagShift && word != 0L && word != Tombstone

  def isRemoved(word: Long): Boolean = (word & 1L) != 0L

  /** `used` counts all slots that are not 0; `tombstones` those that hold no row. */
  final class Segment(var address: Long, var capacity: Int, val depth: Int) {
    var used = 0
    var tombstones = 0
  }

  /** A copy of a segment's slots on the heap, for one cursor. */
  final class WordBuffer {

    /** Each row that a slot names, removed ones too; the index may change meanwhile. */
    def foreachRow(visit: Long => Unit): Unit = {
      var i = 0
      while (i < count) {
        if (words(i) != 0L && words(i) != Tombstone) visit(rowOf(words(i)))
        i += 1
      }
    }

    var words: Array[Long] = Array.emptyLongArray
    var count = 0

    def copy(address: Long, capacity: Int): Unit = {
      if (words.length < capacity) words = new Array[Long](capacity)
      Platform.copyMemory(null, address, words, Platform.LONG_ARRAY_OFFSET, capacity * 8L)
      count = capacity
    }
  }
}
