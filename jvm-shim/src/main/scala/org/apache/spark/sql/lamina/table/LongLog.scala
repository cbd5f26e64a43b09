package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/** A growing off-heap list of pairs of longs: the undo log of a transaction as (previous state of a key, new row). */
private[table] final class LongLog(pool: PagePool) {
  private var address = 0L
  private var capacity = 0
  private var count = 0

  def size: Int = count

  def isEmpty: Boolean = count == 0

  def bytes: Long = capacity * 16L

  /** Makes room for one more pair, so that `add` cannot fail. */
  def ensure(): Unit = if (count == capacity) grow()

  def add(first: Long, second: Long): Unit = {
    ensure()
    val at = address + count * 16L
    Platform.putLong(null, at, first)
    Platform.putLong(null, at + 8, second)
    count += 1
  }

  def first(i: Int): Long = Platform.getLong(null, address + i * 16L)

  def second(i: Int): Long = Platform.getLong(null, address + i * 16L + 8)

  def setFirst(i: Int, value: Long): Unit = Platform.putLong(null, address + i * 16L, value)

  def setSecond(i: Int, value: Long): Unit = Platform.putLong(null, address + i * 16L + 8, value)

  /** Empties the log; memory beyond a quarter of what was used is given back. */
  def clear(): Unit = {
    if (capacity > 1024 && count < capacity / 4) close()
    count = 0
  }

  def close(): Unit = {
    if (address != 0) pool.free(address, capacity * 16L)
    address = 0
    capacity = 0
    count = 0
  }

  private def grow(): Unit = {
    val larger = math.max(64, capacity + (capacity >> 1))
    val target = pool.allocate(larger * 16L)
    if (address != 0) {
      Platform.copyMemory(null, address, null, target, count * 16L)
      pool.free(address, capacity * 16L)
    }
    address = target
    capacity = larger
  }
}
