package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/**
 * The pages of one column family. A new row takes the space of dead ones where a page has enough of them, else it is
 * appended; dead bytes are counted per page.
 *
 * The first pages are small, and each is as large as all rows before it together: a column family of few rows takes a few KiB.
 * {{{
 * page      position in `pages` (int) | of the first one in a block: log2 of the bytes of each page there (int) | 8 bytes | rows
 * block     256 KiB: one page, or small pages of one size, of several column families
 * }}}
 * So a row's page is found by masking its address twice. A large row has a page of its own, which begins right before it.
 */
private[table] final class FamilyPages(
    pool: PagePool,
    resting: Resting,
    deadPercent: Int = FamilyPages.DeadPercent
) {
  import FamilyPages._

  private var pages: Array[Page] = new Array[Page](4)
  private var count = 0
  private var current: Page = _

  /** The page whose dead rows are used again, and how far it has been searched. */
  private var hole: Page = _
  private var searched = 0L
  private var hand = 0

  /** Bytes of new rows for which no dead ones are looked for, as there were none a while ago. */
  private var holdOff = 0L

  /** The page that reclaim is emptying, which must get no new rows. */
  private var emptying: Page = _

  var pageBytes = 0L

  /** Bytes of rows that have a page of their own. */
  private var largeBytes = 0L

  /** Bytes taken in pages, dead ones included, and the dead ones. */
  var usedBytes = 0L
  var deadBytes = 0L

  /**
   * Appends a row's header and key; what lies between them, and the value area, is the caller's to fill. Fails without a
   * trace at the memory cap.
   */
  def append(
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueLength: Int,
      flags: Int,
      headerBytes: Long = Rows.HeaderBytes
  ): Long = {
    require(keyLength >= 0 && valueLength >= 0, "lengths that a header cannot hold")
    Rows.requireFits(keyLength, valueLength)
    val row = take(headerBytes + Rows.padded(keyLength) + Rows.padded(valueLength))
    Rows.writeHeader(row, keyLength, valueLength, flags)
    Platform.copyMemory(keyBase, keyOffset, null, row + headerBytes, keyLength)
    row
  }

  /** Space for a row, of dead ones or behind all others. */
  def take(size: Long): Long = {
    val reused = reuse(size)
    if (reused != 0L) reused else reserve(size)
  }

  /** The space of a row may be used again: nobody reads it any more. */
  def free(row: Long): Unit = {
    val size = Rows.size(row)
    val page = pageOf(row, size)
    Rows.markDead(row)
    page.dead += size
    deadBytes += size
    if (page.dead == page.used - PagePool.PageHeader && (page ne current)) discard(page)
  }

  /** The full page with the largest dead share, if that is worth reclaiming; null otherwise. */
  def mostDead: Page = {
    if (deadBytes * 100 <= usedBytes * deadPercent || usedBytes < pool.mostPageBytes) null
    else {
      var best: Page = null
      var i = 0
      while (i < count) {
        val page = pages(i)
        if ((page ne current) && page.dead > 0 && !page.isLarge && (best == null || page.dead > best.dead)) {
          best = page
        }
        i += 1
      }
      if (best != null && best.dead * 100 < best.used * MinPagePercent) null else best
    }
  }

  /** Calls `move` with each row of a page that is not dead, and gives the page up. */
  def empty(page: Page)(move: Long => Unit): Unit = {
    emptying = page
    if (hole eq page) hole = null
    try {
      var row = page.address + PagePool.PageHeader
      val end = page.address + page.used
      while (row < end) {
        if (!Rows.isDead(row)) move(row)
        row += Rows.size(row)
      }
    } finally emptying = null
    forget(page)
    resting.add(page)
  }

  /** Gives up the page that new rows go to, if all of its rows are dead. */
  def discardCurrent(): Unit = if (current != null && current.dead == current.used - PagePool.PageHeader) {
    val page = current
    current = null
    discard(page)
  }

  /** Gives up a page whose rows are all dead: nobody reads them any more. */
  private def discard(page: Page): Unit = {
    forget(page)
    pool.give(page)
  }

  private def forget(page: Page): Unit = {
    if (hole eq page) hole = null
    pageBytes -= page.bytes
    if (page.isLarge) largeBytes -= page.used - PagePool.PageHeader
    usedBytes -= page.used - PagePool.PageHeader
    deadBytes -= page.dead
    count -= 1
    val last = pages(count)
    pages(page.position) = last
    setPosition(last, page.position)
    pages(count) = null
  }

  def close(): Unit = {
    while (count > 0) {
      count -= 1
      resting.add(pages(count))
      pages(count) = null
    }
    current = null
    hole = null
    pageBytes = 0L
    largeBytes = 0L
    usedBytes = 0L
    deadBytes = 0L
  }

  /** Space of dead rows for a new one, or 0. Looks at no more than two pages. */
  private def reuse(size: Long): Long = {
    var row = 0L
    if (size <= LargeRowBytes) {
      var pagesLeft = 2
      while (row == 0L && pagesLeft > 0 && (hole != null || findHole(size))) {
        row = reuseIn(hole, size)
        if (row == 0L) {
          hole.unfit = hole.dead
          hole = null
        }
        pagesLeft -= 1
      }
    }
    row
  }

  /** The next space of at least `size` bytes in a page; what is left of it stays dead. */
  private def reuseIn(page: Page, size: Long): Long = {
    val end = page.address + page.used
    while (searched < end) {
      val start = searched
      if (!Rows.isDead(start)) searched += Rows.size(start)
      else {
        var bytes = Rows.size(start)
        while (bytes < size && start + bytes < end && Rows.isDead(start + bytes)) bytes += Rows.size(start + bytes)
        if (bytes >= size) {
          if (bytes > size) Rows.writeDead(start + size, bytes - size)
          searched = start + size
          page.dead -= size
          deadBytes -= size
          return start
        }
        searched = start + bytes
      }
    }
    0L
  }

  /** Chooses a page with enough dead rows, going round all pages in turn. */
  private def findHole(size: Long): Boolean = {
    if (holdOff > 0) holdOff -= size
    else if (deadBytes * 100 > usedBytes * ReusePercent) {
      var left = math.min(count, PagesPerSearch)
      while (hole == null && left > 0) {
        hand = if (hand + 1 < count) hand + 1 else 0
        val page = pages(hand)
        val fits = (page ne current) && (page ne emptying) && !page.isLarge
        if (fits && (page.dead - page.unfit) * 100 > page.used * ReusePercent) {
          hole = page
          searched = page.address + PagePool.PageHeader
        }
        left -= 1
      }
      if (hole == null) holdOff = BytesPerSearch
    }
    hole != null
  }

  private def reserve(size: Long): Long = {
    if (size > LargeRowBytes) {
      val row = takeFrom(adopt(pool.largePage(size)), size)
      largeBytes += size
      row
    } else {
      if (current == null || current.used + size > current.bytes) {
        val full = current
        current = adopt(pool.page(nextPageBytes(size)))
        if (full != null && full.dead == full.used - PagePool.PageHeader) discard(full)
      }
      takeFrom(current, size)
    }
  }

  /** As large as all rows that share pages together, within bounds, and large enough for a row. */
  private def nextPageBytes(size: Long): Long = {
    val alive = math.min(usedBytes - deadBytes - largeBytes, pool.mostPageBytes)
    val wanted = math.max(PagePool.SmallestPageBytes, math.max(alive, size + PagePool.PageHeader))
    if (wanted > PagePool.PageBytes / 2) PagePool.PageBytes else java.lang.Long.highestOneBit(2 * wanted - 1)
  }

  private def takeFrom(page: Page, size: Long): Long = {
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
    pageBytes += page.bytes
    if (!page.isLarge) {
      // Other column families with pages in this block write the same.
      Platform.putInt(null, blockOf(page.address) + 4, java.lang.Long.numberOfTrailingZeros(page.bytes))
    }
    page
  }

  private def setPosition(page: Page, position: Int): Unit = {
    page.position = position
    Platform.putInt(null, page.address, position)
  }

  private def pageOf(row: Long, size: Long): Page = {
    val page =
      if (size > LargeRowBytes) row - PagePool.PageHeader
      else row & (-1L << Platform.getInt(null, blockOf(row) + 4))
    pages(Platform.getInt(null, page))
  }

  private def blockOf(address: Long): Long = address & ~(PagePool.PageBytes - 1)
}

private[table] object FamilyPages {

  /** Larger rows have a page of their own. */
  val LargeRowBytes: Long = PagePool.PageBytes / 8

  /** How large a row of this size may become in the same page. */
  def roomFor(size: Long): Long =
    if (size <= LargeRowBytes) size else PagePool.largePageBytes(size) - PagePool.PageHeader

  /** Dead rows are used again above this share of dead bytes, in all pages and in the one looked at, in per cent. */
  val ReusePercent = 8

  /** Pages looked at for one with enough dead rows, and bytes of rows appended before the next look. */
  val PagesPerSearch = 64
  val BytesPerSearch: Long = 16L << 10

  /** Reclaim starts above this share of dead bytes, in per cent of the bytes in use; of lists, which have room for growth too. */
  val DeadPercent = 25
  val DeadListPercent = 12

  /** A page is worth moving only above this share of dead bytes. */
  val MinPagePercent = 10
}
