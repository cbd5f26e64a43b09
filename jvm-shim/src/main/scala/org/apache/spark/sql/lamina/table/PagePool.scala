package org.apache.spark.sql.lamina.table

import java.util.TreeMap
import java.util.concurrent.atomic.AtomicInteger

import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * A page of rows, aligned to its size, so that a row's page is found by masking its address.
 *
 * @param isLarge whether it is for one row that is too big for a normal one: of whole units, and aligned to those only
 */
private[table] final class Page(val address: Long, val bytes: Long, val isLarge: Boolean) {
  var used: Long = PagePool.PageHeader
  var dead: Long = 0L

  /** Dead bytes that were too scattered for a new row when the page was last searched. */
  var unfit: Long = 0L

  /** Position in the list of its owner, who stores it at the page's start, too. */
  var position: Int = -1
}

private[table] object PagePool {
  val PageBytes: Long = 256L << 10
  val PageHeader: Long = 16L

  /** Pages of rows are of this size or of its doubles, up to `PageBytes`. */
  val SmallestPageBytes: Long = 4L << 10

  /** Pages of rows are at most of this size where there is little memory for many transactions. */
  private val ShortPageBytes = 32L << 10

  /** Bytes of rows that come in a transaction from one look at the memory to the next: much less than an eighth of the least memory. */
  private[table] val BytesALook: Long = 32L << 10

  /** Pages of single rows, and all else that is larger than a cell, are multiples of this. */
  val UnitBytes: Long = 8L << 10

  /** A transaction that got less than this part of the memory does not put its changes on the disk, unless there are many. */
  private val LeastParts = 16L

  private val UnitsPerPage = (PageBytes / UnitBytes).toInt

  /**
   * With the page that alignment takes, above 32 MiB: the largest size that the GNU C library may serve from an arena, where
   * what is given back stays with the process for good if something else lies above it.
   */
  val PagesPerChunk = 128

  private val isBackground = ThreadLocal.withInitial[java.lang.Boolean](() => false)

  /** Runs work that takes nobody else's memory: at the cap it fails at once. */
  def inBackground[A](work: => A): A = {
    val outer = isBackground.get
    isBackground.set(true)
    try work
    finally isBackground.set(outer)
  }

  /** The size of the page for a row that is too big for a normal one. */
  private[table] def largePageBytes(bytes: Long): Long = wholeUnits(bytes + PageHeader)

  private def wholeUnits(bytes: Long): Long = (bytes + UnitBytes - 1) / UnitBytes * UnitBytes
}

/**
 * Off-heap memory of all tables of this JVM, with one cap.
 *
 * What is given back is used again or freed at once: who gives pages back sees to it that nobody reads them. Thread-safe.
 *
 * @param maxBytes cap for everything reserved here; passing it is the error `memory.cap`
 * @param setting the key of the setting that says so
 */
final class PagePool(
    val maxBytes: Long,
    memory: SystemMemory = SystemMemory.Native,
    setting: String = "heap.maxBytes"
) {
  import PagePool._

  /** Looks for what tables at rest could give back: each of them has all of its rows looked at. */
  private[lamina] val looksAtRest = new Backoff

  /** By address: the lowest are used first, so that the others become empty. `open` are those with a free page. */
  private val chunks, open = new TreeMap[Long, Chunk]()

  /** Pages that are divided: into cells for what is no row, and into small pages of rows. */
  private val cells, smallPages = new Cells
  private var reserved = 0L
  private var used = 0L
  private var aside = 0L
  private var refused: OutOfMemoryError = _
  private var pressure, shortage: () => Boolean = () => false

  /**
   * Called, without this pool's lock, again and again before an allocation fails at the cap: gives some memory up, and says
   * whether there was any to give up. Not called by `inBackground`.
   */
  def onPressure(action: () => Boolean): Unit = synchronized { pressure = action }

  /** Called where memory is short, before anything is put on the disk for it: has others forget rows that are there already. */
  def onShortage(action: () => Boolean): Unit = synchronized { shortage = action }

  /** Whether others have given some memory up. */
  private[table] def othersForget(): Boolean = synchronized(shortage)()

  private val writers = new AtomicInteger()

  /** A transaction begins, or ends, that puts its changes on the disk where memory is short. */
  private[table] def writing(begins: Boolean): Unit = {
    if (begins) writers.incrementAndGet() else writers.decrementAndGet()
    ()
  }

  /**
   * What may come in such a transaction before it puts its changes on the disk: never more than its part of half of what there is, so
   * that one of them has come that far before memory has run out.
   */
  private[table] def writersShare: Long = tableBytes / math.max(PagePool.LeastParts, 2L * writers.get)

  /** Bytes of pages that are in use, or were and are still in memory: those of rows, indexes and logs. */
  def reservedBytes: Long = synchronized(reserved)

  /** Bytes of pages that are in use. */
  def usedBytes: Long = synchronized(used)

  /** What tables may have. */
  def tableBytes: Long = synchronized(maxBytes - aside)

  /**
   * Whether of what tables may have an eighth is left, or what all transactions may take before they look again, where that is more;
   * but never while more than half of it is.
   */
  def isNearlyFull: Boolean = synchronized {
    val all = maxBytes - aside
    val reserve = math.max(all / 8, math.min(writers.get * (mostPageBytes + BytesALook), all / 2))
    used >= all - reserve
  }

  /** How large pages of rows are made: small where a large one for each transaction would be a large part of all memory. */
  private[table] def mostPageBytes: Long = if (writers.get * PageBytes <= tableBytes / 4) PageBytes else ShortPageBytes

  /**
   * Where less than so many bytes are not in memory, others give way as before an allocation fails, as long as that is of use: rows
   * in use may take what they leave.
   */
  private[lamina] def makeRoom(bytes: Long): Unit = {
    def room = synchronized(maxBytes - reserved)
    trim()
    var (before, goesOn) = (Long.MaxValue, true)
    // not under this pool's lock
    while (goesOn && room < bytes && usedBytes < before) {
      before = usedBytes
      goesOn = synchronized(pressure)()
      trim()
    }
  }

  /** Keeps a part of what is not in memory for something else, in place of what was kept before; gives the bytes. */
  private[lamina] def setAside(part: Long => Long): Long = synchronized {
    trim()
    aside = part(maxBytes - reserved)
    aside
  }

  /** Memory for other things than rows: index segments, undo logs, ordered keys. */
  private[table] def allocate(bytes: Long): Long =
    if (bytes > Cells.MaxBytes) run(wholeUnits(bytes))
    else cellOf(cells, bytes)

  private def cellOf(cells: Cells, bytes: Long): Long = {
    val cell = synchronized(cells.take(bytes))
    if (cell != 0L) cell else newCell(cells, bytes)
  }

  /** A cell of another page, or of one that has got a free cell meanwhile. */
  private def newCell(cells: Cells, bytes: Long): Long = {
    val page =
      try Right(run(PageBytes))
      catch { case error: LaminaError => Left(error) }
    synchronized {
      val freed = cells.take(bytes)
      page match {
        case Right(address) if freed == 0L =>
          cells.add(address, bytes)
          cells.take(bytes)
        case Right(address) =>
          give(address, PageBytes)
          freed
        case Left(error) =>
          if (freed == 0L) throw error
          freed
      }
    }
  }

  private[table] def free(address: Long, bytes: Long): Unit = synchronized {
    if (bytes > Cells.MaxBytes) give(address, wholeUnits(bytes))
    else freeCell(cells, address, bytes)
  }

  private def freeCell(cells: Cells, address: Long, bytes: Long): Unit =
    if (cells.give(address, bytes)) give(address & ~(PageBytes - 1), PageBytes)

  /** As many bytes as `allocate` sets aside for so many. */
  private[table] def sizeFor(bytes: Long): Long =
    if (bytes > Cells.MaxBytes) wholeUnits(bytes) else Cells.sizeFor(bytes)

  /** A page of rows: of `PageBytes`, or of a power of two below it and aligned to it. */
  private[table] def page(bytes: Long = PageBytes): Page =
    new Page(if (bytes < PageBytes) cellOf(smallPages, bytes) else run(PageBytes), bytes, isLarge = false)

  /** A page for one row that is too big for a normal one. */
  private[table] def largePage(bytes: Long): Page = {
    val size = largePageBytes(bytes)
    new Page(run(size), size, isLarge = true)
  }

  /** Takes a page back that nobody reads. */
  private[table] def give(page: Page): Unit = synchronized {
    if (page.isLarge || page.bytes == PageBytes) give(page.address, page.bytes)
    else freeCell(smallPages, page.address, page.bytes)
  }

  /** Frees all that is not in use. */
  private[lamina] def trim(): Unit = synchronized {
    open.values.stream.filter(_.isEmpty).toList.forEach(drop(_))
  }

  /** The address of so many bytes, of whole units; a page is aligned to its size. Before this fails others give way, one by one. */
  private def run(bytes: Long): Long = {
    var run = tryRun(bytes)
    if (run == 0L) {
      trim()
      run = tryRun(bytes)
    }
    // Not under this pool's lock: what frees memory takes locks of its own.
    while (run == 0L && !isBackground.get && synchronized(pressure)()) {
      trim()
      run = tryRun(bytes)
    }
    if (run == 0L) {
      // others may have made room meanwhile
      trim()
      run = tryRun(bytes)
    }
    if (run == 0L) throw capError(bytes)
    run
  }

  /** Units that are in memory already, else others; 0 at the cap, or where the system has no memory. */
  private def tryRun(bytes: Long): Long = synchronized {
    val count = (bytes / UnitBytes).toInt
    val step = if (bytes == PageBytes) UnitsPerPage else 1
    var (best, first, more) = (null: Chunk, 0, Int.MaxValue)
    val candidates = open.values.iterator
    while (more > 0 && candidates.hasNext) {
      val chunk = candidates.next()
      val found = chunk.find(count, step)
      val growth = math.max(0, found + count - chunk.touched)
      if (found >= 0 && growth < more) {
        best = chunk
        first = found
        more = growth
      }
    }
    refused = null
    val fits = reserved + (if (best == null) count else more) * UnitBytes <= maxBytes - aside
    if (fits && best == null) best = newChunk(count)
    if (!fits || best == null) 0L
    else {
      val before = best.touched
      val run = best.take(first, count)
      if (best.isFull) open.remove(best.address)
      reserved += (best.touched - before) * UnitBytes
      used += count * UnitBytes
      run
    }
  }

  private def newChunk(count: Int): Chunk =
    try {
      val chunk = new Chunk(math.max(count, PagesPerChunk * UnitsPerPage), memory)
      chunks.put(chunk.address, chunk)
      open.put(chunk.address, chunk)
      chunk
    } catch { case error: OutOfMemoryError => refused = error; null }

  /** Takes memory back. One chunk that is not in use is kept, for the next. */
  private def give(run: Long, bytes: Long): Unit = {
    val chunk = chunks.floorEntry(run).getValue
    chunk.give(run, (bytes / UnitBytes).toInt)
    used -= bytes
    open.put(chunk.address, chunk)
    if (chunk.isEmpty) {
      val spare = open.values.stream.anyMatch(other => other.isEmpty && (other ne chunk))
      if (spare || chunk.units > PagesPerChunk * UnitsPerPage) drop(chunk)
    }
  }

  private def drop(chunk: Chunk): Unit = {
    chunks.remove(chunk.address)
    open.remove(chunk.address)
    chunk.close()
    reserved -= chunk.touched * UnitBytes
  }

  private def capError(bytes: Long): LaminaError = synchronized {
    val reason =
      if (refused == null)
        s"but $used of the ${maxBytes - aside} bytes that rows may have by $setting are in use" +
          (if (used + bytes <= maxBytes - aside) ", and the others are in pieces that are too small" else "")
      else s"which the system refuses beyond the $reserved bytes that are reserved"
    new LaminaError(
      LaminaError.MemoryCap,
      s"state needs $bytes bytes more off-heap memory, $reason; " +
        s"raise spark.sql.streaming.stateStore.lamina.$setting together with spark.executor.memoryOverhead, " +
        "or spread the state over more executors",
      refused
    )
  }
}
