package org.apache.spark.sql.lamina.table

import org.apache.spark.sql.lamina.errors.LaminaError
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

  /**
   * Points the entries from `from` on, the first or the second of each pair or both, at rows that were moved. The lowest
   * bit of a row's address is not part of it.
   */
  def follow(moved: MovedRows, from: Int, firsts: Boolean, seconds: Boolean): Unit = {
    var i = from
    while (i < count) {
      val before = first(i)
      if (firsts) Platform.putLong(null, address(i), moved.target(before & ~1L) | (before & 1L))
      if (seconds) Platform.putLong(null, address(i) + 8, moved.target(second(i)))
      i += 1
    }
  }

  def close(): Unit = {
    while (chunkCount > 0) {
      chunkCount -= 1
      pool.free(chunks(chunkCount), ChunkBytes)
    }
    count = 0
  }

  private def address(i: Int): Long = chunks(i >>> ChunkBits) + (i & ChunkMask) * 16L

  private def grow(): Unit = {
    if (chunkCount == MaxChunks) {
      throw new LaminaError(
        LaminaError.StoreUnsupported,
        s"a transaction changed $count keys of one column family, which is the most; use more shuffle partitions or smaller batches"
      )
    }
    if (chunkCount == chunks.length) chunks = java.util.Arrays.copyOf(chunks, math.max(4, chunkCount * 2))
    chunks(chunkCount) = pool.allocate(ChunkBytes)
    chunkCount += 1
  }
}

private[table] object LongLog {
  val ChunkBits = 10
  val ChunkMask: Int = (1 << ChunkBits) - 1
  val ChunkBytes: Long = 16L << ChunkBits

  /** As many as an Int can count the pairs of. */
  val MaxChunks: Int = Int.MaxValue >>> ChunkBits
}
