package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/**
 * A growing off-heap list of pairs of longs: the undo log of a transaction as (previous state of a key, new row).
 *
 * Grows by chunks that never move, so that no addition pauses.
 */
private[table] final class LongLog(pool: PagePool) {
  import LongLog._

  private var chunks = Array.emptyLongArray
  private var chunkCount = 0
  private var count = 0

  def size: Int = count

  def isEmpty: Boolean = count == 0

  def bytes: Long = chunkCount * ChunkBytes

  /** Makes room for one more pair, so that `add` cannot fail. */
  def ensure(): Unit = if (count == chunkCount << ChunkBits) grow()

  def add(first: Long, second: Long): Unit = {
    ensure()
    val at = address(count)
    Platform.putLong(null, at, first)
    Platform.putLong(null, at + 8, second)
    count += 1
  }

  def first(i: Int): Long = Platform.getLong(null, address(i))

  def second(i: Int): Long = Platform.getLong(null, address(i) + 8)

  def setFirst(i: Int, value: Long): Unit = Platform.putLong(null, address(i), value)

  def setSecond(i: Int, value: Long): Unit = Platform.putLong(null, address(i) + 8, value)

  /** Empties the log; a chunk is kept for the next transaction. */
  def clear(): Unit = {
    shrink(1)
    count = 0
  }

  def close(): Unit = {
    shrink(0)
    count = 0
  }

  private def address(i: Int): Long = chunks(i >>> ChunkBits) + (i & ChunkMask) * 16L

  private def grow(): Unit = {
    if (chunkCount == chunks.length) chunks = java.util.Arrays.copyOf(chunks, math.max(4, chunkCount * 2))
    chunks(chunkCount) = pool.allocate(ChunkBytes)
    chunkCount += 1
  }

  private def shrink(keep: Int): Unit = while (chunkCount > keep) {
    chunkCount -= 1
    pool.free(chunks(chunkCount), ChunkBytes)
  }
}

private[table] object LongLog {
  val ChunkBits = 10
  val ChunkMask: Int = (1 << ChunkBits) - 1
  val ChunkBytes: Long = 16L << ChunkBits
}
