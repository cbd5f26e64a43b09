package org.apache.spark.sql.lamina.table

import java.util.ArrayDeque

import scala.collection.mutable

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/** A page of rows: aligned to [[PagePool.PageBytes]], so that a row's page is found by masking its address. */
private[table] final class Page(val address: Long, val bytes: Long, private[table] val chunk: PagePool.Chunk) {
  var used: Long = PagePool.PageHeader
  var dead: Long = 0L

  /** Dead bytes that were too scattered for a new row when the page was last searched. */
  var unfit: Long = 0L

  /** Position in the list of its owner; also stored at the page's start. */
  var position: Int = -1
}

private[table] object PagePool {
  val PageBytes: Long = 256L << 10
  val PageHeader: Long = 16L
  val PagesPerChunk = 16

  /** The longest wait for quarantines to be over, under the lock of the table that needs memory. */
  val MaxRestMs = 5000L

  /** One allocation that holds aligned pages. */
  final class Chunk(val allocation: Long, val bytes: Long) {
    var free: Int = 0
  }
}

/**
 * Off-heap memory of all tables of this JVM, with one cap.
 *
 * Pages that a table gave up may still be read by rows handed out earlier, so they wait `quarantineMs` before they are used
 * again or freed. Thread-safe.
 *
 * @param maxBytes cap for everything reserved here; passing it is the error `memory.cap`
 * @param quarantineMs milliseconds
 * @param clock milliseconds, monotonic
 */
final class PagePool(val maxBytes: Long, quarantineMs: Long, clock: () => Long) {
  import PagePool._

  private val free = new ArrayDeque[Page]()
  private val waiting = new ArrayDeque[(Long, Page)]()
  private val chunks = mutable.HashSet.empty[Chunk]
  private var reserved = 0L
  private var pressure: () => Unit = () => ()

  /** Called, without this pool's lock, before an allocation fails at the cap: may free memory. */
  def onPressure(action: () => Unit): Unit = synchronized { pressure = action }

  /** Bytes reserved now: pages (free and waiting ones too), indexes, logs. */
  def reservedBytes: Long = synchronized(reserved)

  /** Memory that is not a page: index segments, undo logs, ordered keys. */
  private[table] def allocate(bytes: Long): Long = {
    reserve(bytes)
    try Platform.allocateMemory(bytes)
    catch {
      case e: OutOfMemoryError =>
        release(bytes)
        throw capError(bytes, e)
    }
  }

  private[table] def free(address: Long, bytes: Long): Unit = {
    Platform.freeMemory(address)
    release(bytes)
  }

  private[table] def page(): Page = {
    var page = takeFree()
    while (page == null) {
      val refusal =
        try { addChunk(); None }
        catch { case error: LaminaError => Some(error) }
      // what was given up meanwhile may be pages, if not a whole chunk
      page = takeFree()
      if (page == null) refusal.foreach(error => throw error)
    }
    new Page(page.address, page.bytes, page.chunk)
  }

  private def takeFree(): Page = synchronized {
    sweep()
    val page = free.poll()
    if (page != null) page.chunk.free -= 1
    page
  }

  /** A page for one row that is too big for a normal one. */
  private[table] def largePage(bytes: Long): Page = {
    val size = bytes + PageHeader
    val allocation = allocate(size + PageBytes)
    new Page(align(allocation), size, new Chunk(allocation, size + PageBytes))
  }

  /** Milliseconds, monotonic: now, and when the quarantine of what is given up now will be over. */
  private[table] def nowMs: Long = clock()
  private[table] def quarantineEndMs: Long = clock() + quarantineMs

  /** Takes a page back; it is kept as it is until the quarantine is over. */
  private[table] def retire(page: Page): Unit = synchronized {
    waiting.addLast((clock() + quarantineMs, page))
    sweep()
  }

  /** Re-uses or frees pages whose quarantine is over. */
  def sweep(): Unit = synchronized {
    val now = clock()
    while (!waiting.isEmpty && waiting.peekFirst()._1 <= now) recycle(waiting.pollFirst()._2)
    if (free.size > 2 * PagesPerChunk) trim(spare = 1)
  }

  private def recycle(page: Page): Unit = {
    if (page.bytes > PageBytes || page.chunk.bytes < PageBytes * PagesPerChunk) {
      free(page.chunk.allocation, page.chunk.bytes)
    } else {
      free.push(page)
      page.chunk.free += 1
    }
  }

  /** Gives whole free chunks back, keeping `spare` for the next pages. */
  private def trim(spare: Int): Unit = {
    val empty = chunks.filter(_.free == PagesPerChunk).drop(spare)
    if (empty.nonEmpty) {
      free.removeIf(page => empty.contains(page.chunk))
      empty.foreach { chunk =>
        chunks -= chunk
        free(chunk.allocation, chunk.bytes)
      }
    }
  }

  private def addChunk(): Unit = {
    val bytes = (PagesPerChunk + 1) * PageBytes
    val chunk = new Chunk(allocate(bytes), bytes)
    val first = align(chunk.allocation)
    synchronized {
      chunks += chunk
      var i = PagesPerChunk - 1
      while (i >= 0) {
        free.push(new Page(first + i * PageBytes, PageBytes, chunk))
        i -= 1
      }
      chunk.free = PagesPerChunk
    }
  }

  private def align(address: Long): Long = (address + PageBytes - 1) & ~(PageBytes - 1)

  private def reserve(bytes: Long): Unit = if (!tryReserve(bytes)) {
    // Not under this pool's lock: what frees memory takes locks of its own.
    synchronized(pressure)()
    // what has just been given up may be read until its quarantine is over
    val rest = untilSweptMs
    if (rest > 0) Thread.sleep(math.min(rest, MaxRestMs))
    synchronized {
      sweep()
      trim(spare = 0)
    }
    if (!tryReserve(bytes)) throw capError(bytes, null)
  }

  /** Milliseconds until the quarantine of all pages that wait now is over. */
  private def untilSweptMs: Long = synchronized {
    if (waiting.isEmpty) 0L else math.max(0L, waiting.peekLast()._1 - clock())
  }

  private def tryReserve(bytes: Long): Boolean = synchronized {
    val fits = reserved + bytes <= maxBytes
    if (fits) reserved += bytes
    fits
  }

  private def release(bytes: Long): Unit = synchronized { reserved -= bytes }

  private def capError(bytes: Long, cause: Throwable): LaminaError = new LaminaError(
    LaminaError.MemoryCap,
    s"state needs $bytes bytes more off-heap memory, but ${reservedBytes} of the $maxBytes bytes of heap.maxBytes are in use; " +
      "raise spark.sql.streaming.stateStore.lamina.heap.maxBytes together with spark.executor.memoryOverhead, " +
      "or spread the state over more executors",
    cause
  )
}
