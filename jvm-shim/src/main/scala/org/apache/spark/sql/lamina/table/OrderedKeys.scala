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
 * copies of its keys, found by a sorted array of blocks.
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

  def bytes: Long = blockBytes

  /** Adds a key; nothing happens where it is there already. */
  def add(base: AnyRef, offset: Long, length: Int): Unit = {
    if (blockCount == 0) insertBlock(0, newBlock(BlockBytes))
    var index = math.max(0, blockOf(base, offset, length))
    var position = search(blocks(index), base, offset, length)
    if (position < 0) {
      val need = length + 4L
      while (room(blocks(index)) < need + 4) {
        makeRoom(index, need.toInt)
        index = math.max(0, blockOf(base, offset, length))
        position = search(blocks(index), base, offset, length)
      }
      insertKey(blocks(index), -position - 1, base, offset, length)
    }
  }

  def remove(base: AnyRef, offset: Long, length: Int): Unit = {
    val index = blockOf(base, offset, length)
    if (index >= 0) {
      val block = blocks(index)
      val position = search(block, base, offset, length)
      if (position >= 0) {
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

  /** Copies the block of keys at or above a key (null: the first) into a cursor's buffer; false at the end. */
  def copyFrom(key: Array[Byte], above: Boolean, into: KeyBuffer): Boolean = {
    var index = if (key == null) 0 else math.max(0, blockOf(key, Platform.BYTE_ARRAY_OFFSET, key.length))
    var first = 0
    if (key != null && index < blockCount) {
      val found = search(blocks(index), key, Platform.BYTE_ARRAY_OFFSET, key.length)
      first = if (found >= 0) { if (above) found + 1 else found }
      else -found - 1
    }
    while (index < blockCount && first >= countOf(blocks(index))) {
      index += 1
      first = 0
    }
    if (index >= blockCount) false
    else {
      into.copy(blocks(index), first, countOf(blocks(index)))
      true
    }
  }

  def close(): Unit = {
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

  /** Rewrites a block without its dead keys, or as two halves, so that `need` bytes more fit where the key goes. */
  private def makeRoom(index: Int, need: Int): Unit = {
    val block = blocks(index)
    val count = countOf(block)
    val live = usedOf(block) - deadOf(block)
    val large = math.max(BlockBytes, (need + 64) * 2)
    if (count < 2 || (live + need + 4 * (count + 1) + Header) * 4 < BlockBytes * 3) {
      blocks(index) = copyRange(block, 0, count, math.max(large, live + need + 4 * (count + 2) + Header))
      freeBlock(block)
    } else {
      val middle = count / 2
      val low = copyRange(block, 0, middle, math.max(large, capacityOf(block)))
      val high =
        try copyRange(block, middle, count, math.max(large, capacityOf(block)))
        catch { case error: Throwable => freeBlock(low); throw error }
      blocks(index) = low
      insertBlock(index + 1, high)
      freeBlock(block)
    }
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

  /** A copy of some keys of a block on the heap, for one cursor. */
  final class KeyBuffer {
    private var keys: Array[Array[Byte]] = Array.empty
    private var position = 0

    def isEmpty: Boolean = position >= keys.length

    def next(): Array[Byte] = {
      position += 1
      keys(position - 1)
    }

    def copy(block: Long, from: Int, until: Int): Unit = {
      keys = Array.tabulate(until - from) { i =>
        val cell = cellOf(block, from + i)
        val key = new Array[Byte](Platform.getInt(null, cell))
        Platform.copyMemory(null, cell + 4, key, Platform.BYTE_ARRAY_OFFSET, key.length)
        key
      }
      position = 0
    }
  }
}
