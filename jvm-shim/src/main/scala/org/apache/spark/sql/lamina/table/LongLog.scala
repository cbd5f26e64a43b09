package org.apache.spark.sql.lamina.table

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/**
 * A growing off-heap list of pairs of longs: the undo log of a transaction as (previous state of a key, new row).
 *
 * Grows by chunks that never move, so that no addition pauses; only the first begins small, and moves while it is.
 */
private[table] final class LongLog(pool: PagePool) {
  import LongLog._

  private var chunks = Array.emptyLongArray
  private var chunkCount = 0
  private var count = 0
  private var capacity = 0

  def size: Int = count

  def isEmpty: Boolean = count == 0

  def bytes: Long = if (chunkCount < 2) capacity * PairBytes else chunkCount * ChunkBytes

  /** Makes room for one more pair, so that `add` cannot fail. */
  def ensure(): Unit = if (count == capacity) grow()

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
    if (chunkCount == 1) pool.free(chunks(0), capacity * PairBytes)
    else (0 until chunkCount).foreach(i => pool.free(chunks(i), ChunkBytes))
    chunkCount = 0
    capacity = 0
    count = 0
  }

  private def address(i: Int): Long = chunks(i >>> ChunkBits) + (i & ChunkMask) * PairBytes

  private def grow(): Unit = if (capacity == 0 || capacity >= ChunkPairs) addChunk() else enlarge()

  private def addChunk(): Unit = {
    if (chunkCount == MaxChunks) {
      throw new LaminaError(
        LaminaError.StoreUnsupported,
        s"a transaction changed $count keys of one column family, which is the most; use more shuffle partitions or smaller batches"
      )
    }
    if (chunkCount == chunks.length) chunks = java.util.Arrays.copyOf(chunks, math.max(4, chunkCount * 2))
    val pairs = if (chunkCount == 0) FirstPairs else ChunkPairs
    chunks(chunkCount) = pool.allocate(pairs * PairBytes)
    chunkCount += 1
    capacity += pairs
  }

  /** Makes the first chunk four times as large. */
  private def enlarge(): Unit = {
    val bytes = capacity * PairBytes
    val larger = pool.allocate(4 * bytes)
    Platform.copyMemory(null, chunks(0), null, larger, bytes)
    pool.free(chunks(0), bytes)
    chunks(0) = larger
    capacity *= 4
  }
}

private[table] object LongLog {
  val ChunkBits = 10
  val ChunkPairs: Int = 1 << ChunkBits
  val ChunkMask: Int = ChunkPairs - 1
  val PairBytes = 16L
  val ChunkBytes: Long = PairBytes << ChunkBits

  /** In the first chunk of a log: a fourth of a fourth of … those of the others. */
  val FirstPairs = 16

  /** As many as an Int can count the pairs of. */
  val MaxChunks: Int = Int.MaxValue >>> ChunkBits
}
