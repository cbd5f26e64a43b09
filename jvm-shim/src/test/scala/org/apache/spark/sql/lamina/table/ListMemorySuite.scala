package org.apache.spark.sql.lamina.table

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
}
