package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/** Unsigned byte order of encoded keys. */
object KeyOrder {

  /** The smallest key above all keys with a prefix; null where there is none. */
  def successor(prefix: Array[Byte]): Array[Byte] = {
    var last = prefix.length - 1
    while (last >= 0 && prefix(last) == -1) last -= 1
    if (last < 0) null
    else {
      val result = java.util.Arrays.copyOf(prefix, last + 1)
      result(last) = (result(last) + 1).toByte
      result
    }
  }

  private[table] def compare(
      aBase: AnyRef,
      aOffset: Long,
      aLength: Int,
      bBase: AnyRef,
      bOffset: Long,
      bLength: Int
  ): Int = {
    val common = math.min(aLength, bLength)
    var i = 0
    while (i + 8 <= common) {
      val a = Platform.getLong(aBase, aOffset + i)
      val b = Platform.getLong(bBase, bOffset + i)
      if (a != b) {
        return java.lang.Long.compareUnsigned(java.lang.Long.reverseBytes(a), java.lang.Long.reverseBytes(b))
      }
      i += 8
    }
    while (i < common) {
      val a = Platform.getByte(aBase, aOffset + i) & 0xff
      val b = Platform.getByte(bBase, bOffset + i) & 0xff
      if (a != b) return a - b
      i += 1
    }
    aLength - bLength
  }
}

/**
 * The keys of a column family in unsigned byte order, for prefix and range scans: sorted off-heap blocks, each with its own
 * copies of its keys, found by a sorted array of blocks. A scan goes from place to place; a place holds until `changes` does not.
 *
 * Holds every key that has a row or a removed row in the index; whether a key counts in a version is the index's to say.
 *
 * {{{
 * block  count, bytes of keys, dead bytes, capacity (4 × int) | keys (int length, bytes) →      ← int offsets, sorted
 * }}}
 */
private[table] final class OrderedKeys(pool: PagePool) {
  import OrderedKeys._

  private var blocks: Array[Long] = Array.emptyLongArray
  private var blockCount = 0
  private var blockBytes = 0L
  private var moves = 0L

  def bytes: Long = blockBytes

  /** Differs whenever keys came or went: a place that was found before is none any more. */
  def changes: Long = moves

  /** Adds a key; nothing happens where it is there already. */
  def add(base: AnyRef, offset: Long, length: Int): Unit = {
    if (blockCount == 0) insertBlock(0, newBlock(BlockBytes))
    val index = math.max(0, blockOf(base, offset, length))
    val position = search(blocks(index), base, offset, length)
    if (position < 0) {
      moves += 1
      insert(index, -position - 1, base, offset, length)
    }
  }

  def remove(base: AnyRef, offset: Long, length: Int): Unit = {
    val index = blockOf(base, offset, length)
    if (index >= 0) {
      val block = blocks(index)
      val position = search(block, base, offset, length)
      if (position >= 0) {
        moves += 1
        val count = countOf(block)
        setDead(block, deadOf(block) + 4 + length)
        val slots = slotsOf(block, count)
        // Offsets grow downwards: slot i lies at end - 4 × (i + 1).
        Platform.copyMemory(null, slots, null, slots + 4, (count - 1 - position) * 4L)
        setCount(block, count - 1)
        if (count == 1) dropBlock(index)
      }
    }
  }

  /** The place of the first key. */
  def first: Long = place(0, 0)

  /** The place of the first key at or above a key, or of the first one above it. */
  def find(base: AnyRef, offset: Long, length: Int, above: Boolean): Long = {
    val index = math.max(0, blockOf(base, offset, length))
    if (index >= blockCount) place(index, 0)
    else {
      val found = search(blocks(index), base, offset, length)
      place(index, if (found < 0) -found - 1 else if (above) found + 1 else found)
    }
  }

  /** The place after one that has a key. */
  def after(at: Long): Long = place(indexOf(at), positionOf(at) + 1)

  /** The address of the key at a place, the bytes of its length before it; 0 behind the last key. */
  def keyAt(at: Long): Long =
    if (indexOf(at) >= blockCount) 0L else cellOf(blocks(indexOf(at)), positionOf(at)) + 4

  /** A block and a position in it, of a key where there is one: behind the last key of a block comes the next block. */
  private def place(index: Int, position: Int): Long = {
    var block = index
    var key = position
    while (block < blockCount && key >= countOf(blocks(block))) {
      block += 1
      key = 0
    }
    block.toLong << 32 | key
  }

  def close(): Unit = {
    moves += 1
    var i = 0
    while (i < blockCount) {
      freeBlock(blocks(i))
      i += 1
    }
    blocks = Array.emptyLongArray
    blockCount = 0
  }

  /** The last block whose first key is at or below the key; -1 where all are above. */
  private def blockOf(base: AnyRef, offset: Long, length: Int): Int = {
    var low = 0
    var high = blockCount - 1
    while (low <= high) {
      val middle = (low + high) >>> 1
      val cell = cellOf(blocks(middle), 0)
      val order =
        if (countOf(blocks(middle)) == 0) -1
        else KeyOrder.compare(null, cell + 4, Platform.getInt(null, cell), base, offset, length)
      if (order <= 0) low = middle + 1 else high = middle - 1
    }
    high
  }

  private def search(block: Long, base: AnyRef, offset: Long, length: Int): Int = {
    var low = 0
    var high = countOf(block) - 1
    while (low <= high) {
      val middle = (low + high) >>> 1
      val cell = cellOf(block, middle)
      val order = KeyOrder.compare(null, cell + 4, Platform.getInt(null, cell), base, offset, length)
      if (order == 0) return middle
      if (order < 0) low = middle + 1 else high = middle - 1
    }
    -(low + 1)
  }

  /** Puts a key where it belongs in a block; a full one is rewritten without its dead keys, or gets a neighbour. */
  private def insert(index: Int, position: Int, base: AnyRef, offset: Long, length: Int): Unit = {
    val block = blocks(index)
    val need = length + 8
    if (room(block) >= need) insertKey(block, position, base, offset, length)
    else {
      val count = countOf(block)
      val live = Header + usedOf(block) - deadOf(block) + 4 * count
      val capacity = math.max(BlockBytes, 2 * (need + 60))
      if (count < 2 || (live + need) * 4L < BlockBytes * 3L) {
        blocks(index) = copyRange(block, 0, count, math.max(capacity, live + need))
        freeBlock(block)
        insertKey(blocks(index), position, base, offset, length)
      } else if (position == count && (index == blockCount - 1 || ascends(block, position))) {
        val next = newBlock(capacity)
        insertKey(next, 0, base, offset, length)
        insertBlock(index + 1, next)
      } else {
        val at = if (position > count / 2 && ascends(block, position)) position else count / 2
        split(index, at, math.max(capacity, capacityOf(block)))
        if (position <= at) insert(index, position, base, offset, length)
        else insert(index + 1, position - at, base, offset, length)
      }
    }
  }

  /**
   * Whether the keys that came to a block last, a quarter of it, are those below a position in ascending order. Then the
   * next ones will come there too, and a block that ends there stays behind full. Shorter runs are those of many groups
   * to a block, which halves serve better.
   */
  private def ascends(block: Long, position: Int): Boolean = {
    val run = math.max(1, countOf(block) / 4)
    var end = block + Header + usedOf(block)
    var i = position
    while (i > 0 && i > position - run && endOf(cellOf(block, i - 1)) == end) {
      i -= 1
      end = cellOf(block, i)
    }
    i == position - run
  }

  private def insertKey(block: Long, position: Int, base: AnyRef, offset: Long, length: Int): Unit = {
    val count = countOf(block)
    val at = usedOf(block)
    val cell = block + Header + at
    Platform.putInt(null, cell, length)
    Platform.copyMemory(base, offset, null, cell + 4, length)
    setUsed(block, at + 4 + length)
    val slots = slotsOf(block, count)
    Platform.copyMemory(null, slots, null, slots - 4, (count - position) * 4L)
    Platform.putInt(null, block + capacityOf(block) - 4L * (position + 1), at)
    setCount(block, count + 1)
  }

  /** Makes two blocks of one, of the keys before a position and of the others. */
  private def split(index: Int, at: Int, capacity: Int): Unit = {
    val block = blocks(index)
    val low = copyRange(block, 0, at, capacity)
    val high =
      try copyRange(block, at, countOf(block), capacity)
      catch { case error: Throwable => freeBlock(low); throw error }
    blocks(index) = low
    insertBlock(index + 1, high)
    freeBlock(block)
  }

  private def copyRange(block: Long, from: Int, until: Int, capacity: Int): Long = {
    val target = newBlock(capacity)
    var i = from
    while (i < until) {
      val cell = cellOf(block, i)
      insertKey(target, i - from, null, cell + 4, Platform.getInt(null, cell))
      i += 1
    }
    target
  }

  private def newBlock(capacity: Int): Long = {
    val block = pool.allocate(capacity.toLong)
    blockBytes += capacity
    setCount(block, 0)
    setUsed(block, 0)
    setDead(block, 0)
    Platform.putInt(null, block + 12, capacity)
    block
  }

  private def freeBlock(block: Long): Unit = {
    blockBytes -= capacityOf(block)
    pool.free(block, capacityOf(block).toLong)
  }

  private def insertBlock(index: Int, block: Long): Unit = {
    if (blockCount == blocks.length)
      blocks = java.util.Arrays.copyOf(blocks, math.max(8, blockCount + (blockCount >> 1)))
    System.arraycopy(blocks, index, blocks, index + 1, blockCount - index)
    blocks(index) = block
    blockCount += 1
  }

  private def dropBlock(index: Int): Unit = {
    freeBlock(blocks(index))
    System.arraycopy(blocks, index + 1, blocks, index, blockCount - index - 1)
    blockCount -= 1
  }

  private def room(block: Long): Long = capacityOf(block).toLong - Header - usedOf(block) - 4L * countOf(block)
}

private[table] object OrderedKeys {
  val BlockBytes: Int = 8 << 10
  val Header = 16

  private def countOf(block: Long): Int = Platform.getInt(null, block)
  private def usedOf(block: Long): Int = Platform.getInt(null, block + 4)
  private def deadOf(block: Long): Int = Platform.getInt(null, block + 8)
  private def capacityOf(block: Long): Int = Platform.getInt(null, block + 12)
  private def setCount(block: Long, value: Int): Unit = Platform.putInt(null, block, value)
  private def setUsed(block: Long, value: Int): Unit = Platform.putInt(null, block + 4, value)
  private def setDead(block: Long, value: Int): Unit = Platform.putInt(null, block + 8, value)
  private def slotsOf(block: Long, count: Int): Long = block + capacityOf(block) - 4L * count
  private def cellOf(block: Long, i: Int): Long =
    block + Header + Platform.getInt(null, block + capacityOf(block) - 4L * (i + 1))
  private def endOf(cell: Long): Long = cell + 4 + Platform.getInt(null, cell)
  private def indexOf(place: Long): Int = (place >>> 32).toInt
  private def positionOf(place: Long): Int = place.toInt
}
