package org.apache.spark.sql.lamina.table

import java.util.{BitSet, TreeMap}

import scala.collection.mutable

/**
 * Memory of less than a page: index segments, undo logs, ordered keys. A page is divided into cells of one size, a whole
 * fraction of it, so that next to nothing is left over; the cells that lie lowest are used first, so that pages become empty.
 *
 * Not thread-safe.
 */
private[table] final class Cells {
  import Cells._

  private val pages = mutable.LongMap.empty[CellPage]

  /** By size, the pages that have a free cell, by address. */
  private val open = Array.fill(Divisors.length)(new TreeMap[Long, CellPage]())

  /** The address of a free cell for so many bytes; 0 where another page is needed. */
  def take(bytes: Long): Long = {
    val kind = kindOf(bytes)
    val first = open(kind).firstEntry()
    if (first == null) 0L
    else {
      val page = first.getValue
      val cell = page.used.nextClearBit(0)
      page.used.set(cell)
      page.free -= 1
      if (page.free == 0) open(kind).remove(page.address)
      page.address + cell * sizeOf(kind)
    }
  }

  /** Divides another page into cells for so many bytes. */
  def add(address: Long, bytes: Long): Unit = {
    val kind = kindOf(bytes)
    val page = new CellPage(address, Divisors(kind))
    pages(address) = page
    open(kind).put(address, page)
  }

  /** Takes a cell back; whether its page holds no other one, and belongs to the caller again. */
  def give(cell: Long, bytes: Long): Boolean = {
    val kind = kindOf(bytes)
    val page = pages(cell & ~(PagePool.PageBytes - 1))
    val index = ((cell - page.address) / sizeOf(kind)).toInt
    if (page.cells != Divisors(kind) || !page.used.get(index))
      throw new IllegalStateException("a cell that is not in use")
    page.used.clear(index)
    page.free += 1
    val empty = page.free == page.cells
    if (empty) {
      open(kind).remove(page.address)
      pages.remove(page.address)
    } else if (page.free == 1) open(kind).put(page.address, page)
    empty
  }
}

private[table] object Cells {

  /** Cells in a page: 2, 3, then four steps for each doubling. */
  private val Divisors: Array[Int] = Array(2, 3) ++ (0 to 8).flatMap(power => (4 to 7).map(_ << power))

  /** The largest cell, bytes. */
  val MaxBytes: Long = sizeOf(0)

  private def sizeOf(kind: Int): Long = PagePool.PageBytes / Divisors(kind) & ~7L

  /** The smallest cell that holds so many bytes. */
  private def kindOf(bytes: Long): Int = {
    var (low, high) = (0, Divisors.length - 1)
    while (low < high) {
      val middle = (low + high + 1) >>> 1
      if (sizeOf(middle) >= bytes) low = middle else high = middle - 1
    }
    low
  }

  /** Bytes of the cell that holds so many. */
  def sizeFor(bytes: Long): Long = sizeOf(kindOf(bytes))

  private final class CellPage(val address: Long, val cells: Int) {
    val used = new BitSet(cells)
    var free: Int = cells
  }
}
