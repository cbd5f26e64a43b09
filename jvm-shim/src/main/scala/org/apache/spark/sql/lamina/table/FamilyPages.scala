package org.apache.spark.sql.lamina.table

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/**
 * The pages of one column family: rows are appended, never moved in place; dead bytes are counted per page.
 *
 * @param retire takes pages that no row of the table lives in any more
 */
private[table] final class FamilyPages(pool: PagePool, retire: Page => Unit) {
  import FamilyPages._

  private var pages: Array[Page] = new Array[Page](4)
  private var count = 0
  private var current: Page = _

  /** Bytes taken in pages, dead ones included, and the dead ones. */
  var usedBytes = 0L
  var deadBytes = 0L

  /** Appends a row's header and key; the value area is the caller's to fill. Fails without a trace at the memory cap. */
  def append(
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueLength: Int,
      capacity: Int,
      flags: Int
  ): Long = {
    if (keyLength > Rows.MaxLength || capacity > Rows.MaxLength) {
      throw new LaminaError(
        LaminaError.RowTooLarge,
        s"a row with a key of $keyLength bytes and a value of $capacity bytes is above the limit of ${Rows.MaxLength} bytes each; " +
          "keep large objects outside of the state and a reference to them in it"
      )
    }
    val list = (flags & Rows.List) != 0
    val size = Rows.size(keyLength, capacity, list)
    val row = reserve(size)
    Rows.writeHeader(row, keyLength, valueLength, flags)
    if (list) Rows.writeList(row, capacity, 0)
    val key = row + (if (list) 16 else 8)
    Platform.copyMemory(keyBase, keyOffset, null, key, keyLength)
    row
  }

  def dead(row: Long): Unit = {
    val page = pageOf(row)
    val size = Rows.size(row)
    page.dead += size
    deadBytes += size
    if (page.dead == page.used - PagePool.PageHeader && (page ne current)) drop(page)
  }

  /** The full page with the largest dead share, if that is worth reclaiming; null otherwise. */
  def mostDead: Page = {
    if (deadBytes * 100 <= usedBytes * DeadPercent || usedBytes < PagePool.PageBytes) null
    else {
      var best: Page = null
      var i = 0
      while (i < count) {
        val page = pages(i)
        if (
          (page ne current) && page.dead > 0 && page.bytes == PagePool.PageBytes && (best == null || page.dead > best.dead)
        ) {
          best = page
        }
        i += 1
      }
      if (best != null && best.dead * 100 < best.used * MinPagePercent) null else best
    }
  }

  /** Calls `visit` with each row of a page, in order. */
  def foreachRow(page: Page)(visit: Long => Unit): Unit = {
    var row = page.address + PagePool.PageHeader
    val end = page.address + page.used
    while (row < end) {
      // The size is read first: visiting may move the row.
      val next = row + Rows.size(row)
      visit(row)
      row = next
    }
  }

  /** Gives up a page whose rows have all been moved or are dead. */
  def drop(page: Page): Unit = {
    usedBytes -= page.used - PagePool.PageHeader
    deadBytes -= page.dead
    count -= 1
    val last = pages(count)
    pages(page.position) = last
    setPosition(last, page.position)
    pages(count) = null
    retire(page)
  }

  def pageBytes: Long = {
    var sum = 0L
    var i = 0
    while (i < count) {
      sum += (if (pages(i) eq current) pages(i).used else pages(i).bytes)
      i += 1
    }
    sum
  }

  def close(): Unit = {
    while (count > 0) {
      count -= 1
      retire(pages(count))
      pages(count) = null
    }
    current = null
    usedBytes = 0L
    deadBytes = 0L
  }

  private def reserve(size: Long): Long = {
    if (size > PagePool.PageBytes / 4) {
      val page = adopt(pool.largePage(size))
      take(page, size)
    } else {
      if (current == null || current.used + size > PagePool.PageBytes) {
        val full = current
        current = adopt(pool.page())
        if (full != null && full.dead == full.used - PagePool.PageHeader) drop(full)
      }
      take(current, size)
    }
  }

  private def take(page: Page, size: Long): Long = {
    val row = page.address + page.used
    page.used += size
    usedBytes += size
    row
  }

  private def adopt(page: Page): Page = {
    if (count == pages.length) pages = java.util.Arrays.copyOf(pages, count * 2)
    pages(count) = page
    setPosition(page, count)
    count += 1
    page
  }

  private def setPosition(page: Page, position: Int): Unit = {
    page.position = position
    Platform.putInt(null, page.address, position)
  }

  private def pageOf(row: Long): Page = pages(Platform.getInt(null, row & ~(PagePool.PageBytes - 1)))
}

private[table] object FamilyPages {

  /** Reclaim starts above this share of dead bytes, in per cent of the bytes in use. */
  val DeadPercent = 25

  /** A page is worth moving only above this share of dead bytes. */
  val MinPagePercent = 10
}
