package org.apache.spark.sql.lamina.table

import java.util.BitSet

import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * One allocation, handed out in runs of units that are next to each other.
 *
 * A unit takes memory from its first use until the chunk is freed. Not thread-safe.
 */
private[table] final class Chunk(val units: Int, memory: SystemMemory) {
  import PagePool.{PageBytes, UnitBytes}

  private val used = new BitSet(units)
  private val allocation = Chunk.allocate(units * UnitBytes + PageBytes, memory)
  private var free = units

  /** Units that were in use once: all before the first that never was. */
  var touched = 0

  /** The address of the first unit, aligned to pages. */
  val address: Long = (allocation + PageBytes - 1) & ~(PageBytes - 1)

  def isEmpty: Boolean = free == units
  def isFull: Boolean = free == 0

  /** The first free run of so many units that begins at a multiple of `step`; -1 where there is none. */
  def find(count: Int, step: Int): Int = {
    var start = aligned(used.nextClearBit(0), step)
    while (start + count <= units) {
      val end = used.nextSetBit(start)
      if (end < 0 || end - start >= count) return start
      start = aligned(used.nextClearBit(end), step)
    }
    -1
  }

  private def aligned(unit: Int, step: Int): Int = (unit + step - 1) / step * step

  /** Puts a run into use; its address. */
  def take(first: Int, count: Int): Long = {
    used.set(first, first + count)
    free -= count
    touched = math.max(touched, first + count)
    address + first * UnitBytes
  }

  def give(run: Long, count: Int): Unit = {
    val first = ((run - address) / UnitBytes).toInt
    val end = used.nextClearBit(first)
    if (end < first + count) throw new IllegalStateException("memory that is not in use")
    used.clear(first, first + count)
    free += count
  }

  def close(): Unit = memory.free(allocation)
}

private object Chunk {
  import SystemMemory.AddressBits

  /** Memory whose every address fits into a slot of the index; the only place where that is checked, as all rows lie in chunks. */
  private def allocate(bytes: Long, memory: SystemMemory): Long = {
    val address = memory.allocate(bytes)
    if (((address | (address + bytes - 1)) >>> AddressBits) != 0) {
      memory.free(address)
      throw new LaminaError(
        LaminaError.StoreUnsupported,
        f"the system gave memory at address 0x$address%x, but rows can only lie below 2^$AddressBits; " +
          s"run the executors where a process has addresses of $AddressBits bits, the default of Linux on x86-64 and arm64"
      )
    }
    address
  }
}
