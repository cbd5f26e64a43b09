package org.apache.spark.sql.lamina.table

import java.lang.management.ManagementFactory

import scala.collection.mutable

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/** What a table keeps for each row beside the row itself is off-heap, counted, and under the cap. */
class RowBookkeepingSuite extends AnyFunSuite {
  private val base = Platform.BYTE_ARRAY_OFFSET.toLong
  private val threads = ManagementFactory.getThreadMXBean.asInstanceOf[com.sun.management.ThreadMXBean]
  private val rows = 100000
  private val key = new Array[Byte](8)
  private val value = new Array[Byte](40)

  private def setKey(number: Int): Unit = Platform.putLong(key, base, number * 0x9e3779b97f4a7c15L)

  private def newTable(pool: PagePool, multiValue: Boolean): FamilyTableIn = {
    val table = new StoreTable(pool)
    new FamilyTableIn(table, table.addFamily(0, ordered = false, multiValue))
  }

  private final class FamilyTableIn(val table: StoreTable, val family: FamilyTable) {
    def put(number: Int): Unit = {
      setKey(number)
      family.put(key, base, 8, value, base, value.length)
    }

    def remove(number: Int): Unit = {
      setKey(number)
      family.remove(key, base, 8)
    }

    /** Appends to a list of one byte, which follows from its number. */
    def append(number: Int, bytes: Int): Unit = {
      setKey(number)
      family.append(key, base, 8, Array.fill(bytes)(number.toByte), base, bytes)
    }

    def isList(number: Int, bytes: Int): Boolean = {
      setKey(number)
      val row = family.get(key, base, 8)
      row != 0L && Rows.valueLength(row) == bytes &&
      (0 until bytes).forall(i => Platform.getByte(null, Rows.valueAddress(row) + i) == number.toByte)
    }

    def fill(op: Byte, number: Int): Unit = {
      setKey(number)
      family.filling.add(KeyHash.hash(key, base, 8), op, key, base, 8, value, base, value.length)
    }

    def inBase(number: Int): Boolean = {
      setKey(number)
      family.getBase(key, base, 8) != 0L
    }

    def has(number: Int): Boolean = {
      setKey(number)
      family.get(key, base, 8) != 0L
    }

    def transaction(change: => Unit): Unit = {
      table.begin()
      change
      table.changeSet((_, _, _, _, _, _, _, _) => ())
      table.commit()
    }
  }

  /** Bytes that this thread allocates on the heap for each of `rows` rows. */
  private def heapBytesPerRow(work: => Unit): Double = {
    val before = threads.getThreadAllocatedBytes(Thread.currentThread.getId)
    work
    (threads.getThreadAllocatedBytes(Thread.currentThread.getId) - before).toDouble / rows
  }

  /** Page and segment objects are allowed for, an object for each row is not. */
  private def assertOffHeap(bytesPerRow: Double): Unit =
    assert(bytesPerRow < 4, f"$bytesPerRow%.1f bytes a row are on the heap")

  /** All pages that a pool has left. */
  private def rest(pool: PagePool): Seq[Page] = {
    val pages = mutable.ArrayBuffer.empty[Page]
    intercept[LaminaError](while (true) pages += pool.page())
    pages.toSeq
  }

  private def closeAndCheck(pool: PagePool, in: FamilyTableIn): Unit = {
    in.table.close()
    pool.trim()
    assert(pool.reservedBytes == 0)
  }

  for ((op, name) <- Seq(Ops.Append -> "appends", Ops.Delete -> "deletes")) {
    test(s"a load of $name keeps what waits for older entries off-heap and counts it until its end") {
      val pool = new PagePool(1L << 30)
      val in = newTable(pool, multiValue = true)
      assertOffHeap(heapBytesPerRow {
        var i = 0
        while (i < rows) {
          in.fill(op, i)
          i += 1
        }
        i = 0
        while (i < rows && op == Ops.Append) {
          in.fill(if (i % 2 == 0) Ops.Put else Ops.Append, i)
          i += 1
        }
      })
      assert(in.table.memory.undoBytes >= rows * 8L)
      assertOffHeap(heapBytesPerRow(in.table.endFill()))
      assert(in.table.memory.undoBytes == 0)
      assert(in.table.rows == (if (op == Ops.Append) rows else 0))
      closeAndCheck(pool, in)
    }
  }

  test("a load that is given up gives back what waits for older entries") {
    val pool = new PagePool(1L << 30)
    val in = newTable(pool, multiValue = true)
    (0 until rows).foreach(in.fill(Ops.Append, _))
    closeAndCheck(pool, in)
  }

  test("what leads from new rows to those before them is off-heap and counted until the transaction ends") {
    val pool = new PagePool(1L << 30)
    val in = newTable(pool, multiValue = false)
    in.transaction((0 until rows).foreach(in.put))
    for (ends <- Seq[StoreTable => Unit](_.commit(), _.abort(), _ => ())) {
      in.table.begin()
      value(0) = (value(0) + 1).toByte
      (0 until rows).foreach(in.put)
      val before = in.table.memory.undoBytes
      var found = 0
      assertOffHeap(heapBytesPerRow {
        var i = 0
        while (i < rows) {
          if (in.inBase(i)) found += 1
          i += 1
        }
      })
      assert(found == rows)
      assert(in.table.memory.undoBytes >= before + rows * 16L)
      ends(in.table)
      if (!in.table.inTransaction) assert(in.table.memory.undoBytes <= before)
    }
    closeAndCheck(pool, in)
  }

  test("where reclaim moved rows to is off-heap, and given back when the logs have followed") {
    val pool = new PagePool(1L << 30)
    val in = newTable(pool, multiValue = false)
    in.transaction((0 until rows).foreach(in.put))
    in.transaction((0 until rows).filter(_ % 3 > 0).foreach(in.remove))
    in.transaction((0 until rows / 10).foreach(n => in.put(rows + n)))
    val before = in.table.memory
    while (in.table.maintain(0)) ()
    var moved = 0
    assertOffHeap(heapBytesPerRow(while (in.table.maintain(4)) moved += 1))
    assert(moved > 0 && in.table.memory.pageBytes < before.pageBytes)
    in.table.begin()
    in.table.abort()
    assert((0 until rows).forall(n => in.has(n) == (n % 3 == 0)))
    closeAndCheck(pool, in)
  }

  test("at the cap the base is read all the same, and the transaction can be taken back") {
    val pool = new PagePool(24 * PagePool.PageBytes)
    val in = newTable(pool, multiValue = false)
    in.transaction((0 until 20000).foreach(in.put))
    in.table.begin()
    value(0) = (value(0) + 1).toByte
    (0 until 20000).foreach(in.put)
    var added = 20000
    intercept[LaminaError](while (true) { in.put(added); added += 1 })
    assert((0 until 20000 by 100).forall(in.inBase(_)) && !in.inBase(20000))
    in.table.abort()
    assert((0 until 20000).forall(in.has))
    closeAndCheck(pool, in)
  }

  test("reclaim that ends at the cap loses no row, and no version back") {
    var ended = 0
    for (free <- 0 to 8) {
      val pool = new PagePool(80 * PagePool.PageBytes)
      val in = newTable(pool, multiValue = false)
      in.transaction((0 until rows).foreach(in.put))
      in.transaction((0 until rows).filter(_ % 3 > 0).foreach(in.remove))
      value(0) = (value(0) + 1).toByte
      in.transaction((0 until rows by 15).foreach(in.put))
      while (in.table.maintain(0)) ()
      val others = rest(pool)
      others.take(free).foreach(pool.give)
      try while (in.table.maintain(4)) ()
      catch { case error: LaminaError => assert(error.kind == LaminaError.MemoryCap); ended += 1 }
      assert((0 until rows).forall(n => in.has(n) == (n % 3 == 0)), s"with $free pages")
      others.drop(free).foreach(pool.give)
      while (in.table.maintain(4)) ()
      // Whoever gets the pages that were given up writes into them.
      val reused = rest(pool)
      reused.foreach(page => Platform.setMemory(page.address, 0x5a, page.bytes))
      reused.foreach(pool.give)
      in.table.stepBack()
      assert((0 until rows).forall(n => in.has(n) == (n % 3 == 0)), s"stepped back, with $free pages")
      closeAndCheck(pool, in)
    }
    assert(ended > 0, "the cap was never reached")
  }

  test("reclaim of lists that ends at the cap loses no element, and no version back") {
    val lists = 12000
    var ended = 0
    for (free <- 0 to 8) {
      val pool = new PagePool(120 * PagePool.PageBytes)
      val in = newTable(pool, multiValue = true)
      for (_ <- 1 to 2) in.transaction((0 until lists).foreach(in.append(_, 300)))
      in.transaction((0 until lists).filter(_ % 3 > 0).foreach(in.remove))
      in.transaction((0 until lists by 15).foreach(in.append(_, 30)))
      while (in.table.maintain(0)) ()
      val others = rest(pool)
      others.take(free).foreach(pool.give)
      try while (in.table.maintain(4)) ()
      catch { case error: LaminaError => assert(error.kind == LaminaError.MemoryCap); ended += 1 }
      others.drop(free).foreach(pool.give)
      while (in.table.maintain(4)) ()
      val reused = rest(pool)
      reused.foreach(page => Platform.setMemory(page.address, 0x5a, page.bytes))
      reused.foreach(pool.give)
      assert((0 until lists by 3).forall(n => in.isList(n, if (n % 15 == 0) 630 else 600)), s"with $free pages")
      in.table.stepBack()
      assert((0 until lists by 3).forall(in.isList(_, 600)), s"stepped back, with $free pages")
      closeAndCheck(pool, in)
    }
    assert(ended > 0, "the cap was never reached")
  }

  test("what transactions give up does not pile up in any column family, also without maintenance") {
    for (busy <- Seq(0, 1)) {
      val pool = new PagePool(1L << 30)
      val table = new StoreTable(pool)
      val families =
        (0 to 1).map(id => new FamilyTableIn(table, table.addFamily(id, ordered = false, multiValue = false)))
      def transaction(): Unit = {
        value(0) = (value(0) + 1).toByte
        families(busy).transaction {
          (0 until rows).foreach(families(busy).put)
          families(1 - busy).put(0)
        }
      }
      (1 to 5).foreach(_ => transaction())
      val before = table.memory
      (1 to 15).foreach(_ => transaction())
      assert(table.memory.total <= before.total * 11 / 10, s"column family $busy is busy: $before")
      closeAndCheck(pool, families(0))
    }
  }
}
