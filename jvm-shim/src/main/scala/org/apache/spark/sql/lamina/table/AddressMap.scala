package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/**
 * An off-heap map from addresses of rows to other ones: open addressing in one piece of memory, which doubles when three
 * quarters of it are full. There is no removal, and no memory until the first entry.
 */
private[table] final class AddressMap(pool: PagePool) {
  import AddressMap._

  private var slots = 0L
  private var capacity = 0L
  private var count = 0L

  def bytes: Long = capacity * SlotBytes

  def isEmpty: Boolean = count == 0L

  /** Makes room for one more entry, so that `put` cannot fail. */
  def ensure(): Unit = if ((count + 1) * 4 > capacity * 3) grow()

  /** Neither is 0. */
  def put(from: Long, to: Long): Unit = {
    ensure()
    val slot = find(from)
    if (Platform.getLong(null, slot) == 0L) count += 1
    Platform.putLong(null, slot, from)
    Platform.putLong(null, slot + 8, to)
  }

  /** 0 where there is none. */
  def get(from: Long): Long = if (count == 0L) 0L else Platform.getLong(null, find(from) + 8)

  def close(): Unit = {
    if (slots != 0L) pool.free(slots, bytes)
    slots = 0L
    capacity = 0L
    count = 0L
  }

  /** The slot of an address, or the free one where it would be. */
  private def find(from: Long): Long = {
    var i = ((from >>> 3) * Multiplier >>> 32) & (capacity - 1)
    var there = Platform.getLong(null, slots + i * SlotBytes)
    while (there != 0L && there != from) {
      i = (i + 1) & (capacity - 1)
      there = Platform.getLong(null, slots + i * SlotBytes)
    }
    slots + i * SlotBytes
  }

  private def grow(): Unit = {
    val larger = math.max(FirstCapacity, 2 * capacity)
    val target = pool.allocate(larger * SlotBytes)
    Platform.setMemory(target, 0.toByte, larger * SlotBytes)
    val old = slots
    val oldCapacity = capacity
    slots = target
    capacity = larger
    var i = 0L
    while (i < oldCapacity) {
      val from = Platform.getLong(null, old + i * SlotBytes)
      if (from != 0L) {
        val slot = find(from)
        Platform.putLong(null, slot, from)
        Platform.putLong(null, slot + 8, Platform.getLong(null, old + i * SlotBytes + 8))
      }
      i += 1
    }
    if (old != 0L) pool.free(old, oldCapacity * SlotBytes)
  }
}

private[table] object AddressMap {
  val SlotBytes = 16L
  val FirstCapacity = 16L
  private val Multiplier = 0x9e3779b97f4a7c15L
}
