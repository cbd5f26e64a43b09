package org.apache.spark.sql.lamina.table

import java.nio.file.{Files, Path}
import java.util.concurrent.{ConcurrentLinkedQueue, FutureTask}

import scala.jdk.CollectionConverters._

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.unsafe.Platform

/** What tables give back goes back to the operating system: it does not stay with the C library. */
class ResidentMemorySuite extends AnyFunSuite {
  private val Mapping = "([0-9a-f]+)-[0-9a-f]+ .*".r
  private val Resident = "Rss: +([0-9]+) kB".r
  private val base = Platform.BYTE_ARRAY_OFFSET.toLong
  private val mappings = Path.of("/proc/self/smaps")

  /** Where the JVM puts its heap, if it can: below what compressed pointers reach. */
  private val HeapEnd = 32L << 30

  /** Bytes of this process that are in memory, without the Java heap. */
  private def resident: Long = {
    var (native, bytes) = (false, 0L)
    Files.readAllLines(mappings).asScala.foreach {
      case Mapping(from) => native = java.lang.Long.parseUnsignedLong(from, 16) >= HeapEnd
      case Resident(kib) if native => bytes += kib.toLong << 10
      case _ =>
    }
    bytes
  }

  private def load(pool: PagePool, seed: Int, rows: Int): StoreTable = {
    val table = new StoreTable(pool)
    table.addFamily(0, seed % 2 == 0, multiValue = false)
    table.begin()
    val (key, value) = (new Array[Byte](16), new Array[Byte](100))
    var i = 0
    while (i < rows) {
      Platform.putLong(key, base, (i * 31L + seed) * 0x9e3779b97f4a7c15L)
      table.family(0).put(key, base, key.length, value, base, value.length)
      i += 1
    }
    table.commit()
    table
  }

  private def inThreads(count: Int)(body: Int => Unit): Unit = {
    val tasks = (0 until count).map(i => new FutureTask[Unit](() => body(i)))
    tasks.foreach(new Thread(_).start())
    tasks.foreach(_.get())
  }

  test("tables that are loaded and closed again and again leave no memory behind") {
    assume(Files.exists(mappings), "needs Linux")
    val pool = new PagePool(2L << 30)
    val kept = new ConcurrentLinkedQueue[StoreTable]()
    def round(n: Int): Unit = inThreads(8) { i =>
      val table = load(pool, i, 20000 + (n * 8 + i) * 7919 % 300000)
      kept.add(load(pool, i, 20000))
      table.close()
      if (n > 1) kept.poll().close()
    }
    def outside: Long = resident - pool.reservedBytes
    load(pool, 0, 200000).close() // compiled, by now
    val before = outside
    (0 until 12).foreach(round)
    kept.forEach(_.close())
    val grown = outside - before
    assert(pool.reservedBytes <= PagePool.PagesPerChunk * PagePool.PageBytes)
    assert(grown < (64L << 20), s"${grown >> 20} MiB are neither in use nor given back")
  }
}
