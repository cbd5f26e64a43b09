package org.apache.spark.sql.lamina.table

import java.io.ByteArrayOutputStream

import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.unsafe.Platform

/** A table of lists that are appended to takes at most half as much again as their bytes, whatever their size. */
class ListMemorySuite extends AnyFunSuite {
  private val base = Platform.BYTE_ARRAY_OFFSET.toLong

  /** So many bytes that the page that is being filled is next to nothing, and the index too. */
  private val allBytes = 16 << 20

  private final class Lists(val listBytes: Int) {
    val random = new Random(listBytes)
    val count: Int = math.max(4, allBytes / listBytes)
    val table = new StoreTable(new PagePool(4L << 30))
    private val family = table.addFamily(0, ordered = false, multiValue = true)

    def append(list: Int, bytes: Int, fill: Byte = 0): Unit = {
      val (key, elements) = (s"list $list".getBytes, Array.fill(bytes)(fill))
      family.append(key, base, key.length, elements, base, elements.length)
    }

    def valueOf(list: Int): Array[Byte] = {
      val key = s"list $list".getBytes
      val row = family.get(key, base, key.length)
      val value = new Array[Byte](Rows.valueLength(row))
      Platform.copyMemory(null, Rows.valueAddress(row), value, base, value.length)
      value
    }

    def transaction(change: => Unit): Unit = {
      table.begin()
      change
      table.changeSet((_, _, _, _, _, _, _, _) => ())
      table.commit()
      while (table.maintain(4)) ()
    }

    /** How many times its lists' bytes the table takes, with all that it keeps for them. */
    def share: Double = table.memory.total.toDouble / table.keyValueBytes(0)

    /** Lists up to an eighth shorter than `listBytes`, of which nothing is left that a first append copied. */
    def make(): Unit = {
      transaction((0 until count).foreach(append(_, listBytes - 1 - random.nextInt(listBytes / 8))))
      for (_ <- 1 to 3) transaction((0 until count).foreach(append(_, 1)))
    }
  }

  private val sizes = (0 to 24).map(step => (1024 * math.pow(2, step / 2.0)).toInt)

  /** The share after each of a hundred transactions. */
  private def shares(in: Lists)(change: => Unit): Seq[Double] = {
    in.make()
    (1 to 100).map { _ => in.transaction(change); in.share }
  }

  private def assertBounded(in: Lists, shares: Seq[Double]): Unit = {
    info(f"${in.listBytes}%,d bytes: at most ${shares.max}%.2f times, in the mean ${shares.sum / shares.size}%.2f")
    assert(shares.max <= 1.5, s"lists of ${in.listBytes} bytes")
    in.table.close()
  }

  test("lists that are appended to in turns take at most half as much again after each transaction") {
    for (bytes <- sizes) {
      val in = new Lists(bytes)
      assertBounded(
        in,
        shares(in)((0 until in.count).foreach(list => if (in.random.nextInt(4) == 0) in.append(list, bytes / 64)))
      )
    }
  }

  test("lists that are all appended to at once take at most half as much again after each transaction") {
    for (bytes <- sizes) {
      val in = new Lists(bytes)
      assertBounded(in, shares(in)((0 until in.count).foreach(in.append(_, bytes / 64))))
    }
  }

  test("a list that outgrows its room several times in one transaction is in memory once after it, and steps back") {
    for (bytes <- sizes) {
      val in = new Lists(bytes)
      in.make()
      val before = in.valueOf(0)
      in.transaction(for (_ <- 1 to 40; list <- 0 until in.count) in.append(list, bytes / 64, 1))
      info(f"$bytes%,d bytes: ${in.share}%.2f times")
      assert(in.share <= 1.5, s"lists of $bytes bytes")
      assert(in.valueOf(0).sameElements(before ++ Array.fill(40 * (bytes / 64))(1.toByte)))
      in.table.stepBack()
      assert(in.valueOf(0).sameElements(before))
      in.table.close()
    }
  }

  /** A table of a few lists whose memory is looked at after each change. The page that is being filled counts as a whole. */
  private final class Growth {
    val pool = new PagePool(4L << 30)
    val table = new StoreTable(pool)
    private val family = table.addFamily(0, ordered = false, multiValue = true)
    private val expected = mutable.Map.empty[String, ByteArrayOutputStream]

    /** How many times their bytes lists of 1 KiB and more took at most. */
    var worst = 0.0

    /** The same with what the table gave back and nobody else uses, of lists of 1 MiB together and more. */
    var inPool = 0.0

    private def key(list: Int): Array[Byte] = s"list $list".getBytes

    /** An old buffer beside a new one, which has room for an eighth more, and gaps that are too small for either. */
    def assertOnceAndItsCopy(what: String): Unit = {
      info(f"$what: at most $worst%.2f times, and $inPool%.2f in the pool")
      assert(worst <= 2.3 && inPool <= 5, what)
    }

    def assertBoundedAfter(): Unit = {
      val after = table.memory.total
      assert(after <= table.keyValueBytes(0) * 3 / 2 + PagePool.PageBytes, s"$after after the transaction")
    }

    private def measure(): Unit = {
      val listBytes = table.keyValueBytes(0)
      if (listBytes >= table.rows * 1024L) {
        worst = math.max(worst, (table.memory.total - PagePool.PageBytes).toDouble / listBytes)
        if (listBytes >= (1 << 20)) inPool = math.max(inPool, pool.reservedBytes.toDouble / listBytes)
      }
    }

    def append(list: Int, fill: Byte): Unit = {
      val element = Array.fill(100)(fill)
      family.append(key(list), base, key(list).length, element, base, element.length)
      expected.getOrElseUpdate(s"list $list", new ByteArrayOutputStream).write(element)
      measure()
    }

    def put(list: Int, bytes: Int, fill: Byte): Unit = {
      val value = Array.fill(bytes)(fill)
      family.put(key(list), base, key(list).length, value, base, value.length)
      expected(s"list $list") = new ByteArrayOutputStream
      expected(s"list $list").write(value)
      measure()
    }

    /** As a load does. */
    def fill(list: Int, bytes: Int, fill: Byte): Unit = {
      val (hash, value) = (KeyHash.hash(key(list), base, key(list).length), Array.fill(bytes)(fill))
      family.filling.add(hash, Ops.Put, key(list), base, key(list).length, value, base, value.length)
      expected(s"list $list") = new ByteArrayOutputStream
      expected(s"list $list").write(value)
    }

    private def bytesOf(row: Long): Array[Byte] = {
      val value = new Array[Byte](if (row == 0L) 0 else Rows.valueLength(row))
      if (row != 0L) Platform.copyMemory(null, Rows.valueAddress(row), value, base, value.length)
      value
    }

    def rows: Map[String, Array[Byte]] = expected.view.mapValues(_.toByteArray).toMap

    def assertIs(rows: Map[String, Array[Byte]]): Unit = rows.foreach { case (list, value) =>
      assert(bytesOf(family.get(list.getBytes, base, list.length)).sameElements(value), list)
    }

    def assertBaseIs(rows: Map[String, Array[Byte]]): Unit = rows.foreach { case (list, value) =>
      assert(bytesOf(family.getBase(list.getBytes, base, list.length)).sameElements(value), list)
    }

    def abort(before: Map[String, Array[Byte]]): Unit = {
      table.abort()
      expected.clear()
      before.foreach { case (list, value) =>
        expected(list) = new ByteArrayOutputStream
        expected(list).write(value)
      }
    }

    def commit(): Unit = {
      table.changeSet((_, _, _, _, _, _, _, _) => ())
      table.commit()
      while (table.maintain(4)) ()
      assertIs(rows)
    }

    def close(): Unit = {
      table.close()
      pool.trim()
      assert(pool.reservedBytes == 0)
    }
  }

  /** Lists, appends of 100 bytes to each, and whether one list gets all of its own before the next one. */
  private val growths = Seq((1, 10000, true), (4, 4000, true), (4, 4000, false), (50, 400, false), (400, 50, false))

  private def inTurns(lists: Int, appends: Int, oneByOne: Boolean)(append: (Int, Int) => Unit): Unit =
    if (oneByOne) for (list <- 0 until lists; number <- 0 until appends) append(list, number)
    else for (number <- 0 until appends; list <- 0 until lists) append(list, number)

  test("lists that grow by many appends in a transaction take no more than their bytes and a copy") {
    for ((lists, appends, oneByOne) <- growths) {
      val in = new Growth
      for (version <- 1 to 4) {
        in.table.begin()
        in.worst = 0.0
        in.inPool = 0.0
        inTurns(lists, appends, oneByOne)((list, number) => in.append(list, (version + number).toByte))
        in.assertOnceAndItsCopy(s"$lists lists, $appends appends, version $version")
        in.commit()
        in.assertBoundedAfter()
      }
      in.close()
    }
  }

  test("lists that are put and grow in a transaction take no more than their bytes and a copy") {
    for ((lists, appends, oneByOne) <- growths) {
      val in = new Growth
      in.table.begin()
      for (list <- 0 until lists) in.put(list, appends * 50, 1)
      inTurns(lists, appends, oneByOne)((list, number) => in.append(list, number.toByte))
      in.assertOnceAndItsCopy(s"$lists lists, $appends appends")
      in.commit()
      in.assertBoundedAfter()
      in.close()
    }
  }

  test("the first append to a list that was put or restored leaves no copy behind for the next transaction") {
    for ((lists, bytes) <- Seq((1, 4 << 20), (16, 100000), (1600, 1500)); isRestored <- Seq(false, true)) {
      val in = new Growth
      if (isRestored) {
        for (list <- 0 until lists) in.fill(list, bytes, 1)
        in.table.endFill()
      } else {
        in.table.begin()
        for (list <- 0 until lists) in.put(list, bytes, 1)
        in.commit()
      }
      in.table.begin()
      for (list <- 0 until lists) in.append(list, 2)
      in.commit()
      info(f"$lists lists of $bytes bytes: ${in.table.memory.total.toDouble / in.table.keyValueBytes(0)}%.2f times")
      in.assertBoundedAfter()
      val after = in.rows
      in.table.stepBack()
      in.assertIs(after.map { case (list, value) => list -> value.dropRight(100) })
      in.close()
    }
  }

  test("a list that grows many times is as it was to readers of the version before, and after an abort") {
    for ((lists, appends, oneByOne) <- growths) {
      val in = new Growth
      in.table.begin()
      inTurns(lists, 20, oneByOne)((list, number) => in.append(list, number.toByte))
      in.commit()
      val before = in.rows
      for (round <- 1 to 2) {
        in.table.readersActive(7L)
        in.table.begin()
        inTurns(lists, appends, oneByOne) { (list, number) =>
          in.append(list, (round * number).toByte)
          if (number % 100 == 0) in.assertBaseIs(before)
        }
        in.assertIs(in.rows)
        in.assertBaseIs(before)
        in.abort(before)
        in.assertIs(before)
        in.table.readersEnded(7L)
        while (in.table.maintain(4)) ()
        in.assertIs(before)
      }
      in.close()
    }
  }
}
