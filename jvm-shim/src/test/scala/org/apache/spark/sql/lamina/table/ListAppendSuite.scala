package org.apache.spark.sql.lamina.table

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/** An append to a list takes room for what it appends, not for the list again. */
class ListAppendSuite extends AnyFunSuite {
  private val base = Platform.BYTE_ARRAY_OFFSET.toLong

  private final class Lists {
    val pool = new PagePool(4L << 30)
    val table = new StoreTable(pool)
    private val family = table.addFamily(0, ordered = false, multiValue = true)

    def append(list: Int, bytes: Int, fill: Byte): Unit = {
      val (key, elements) = (s"list $list".getBytes, Array.fill(bytes)(fill))
      family.append(key, base, key.length, elements, base, elements.length)
    }

    private def rowOf(list: Int): Long = {
      val key = s"list $list".getBytes
      family.get(key, base, key.length)
    }

    /** Where the elements of a list are. */
    def addressOf(list: Int): Long = Rows.valueAddress(rowOf(list))

    /** As `append`; the bytes of the list that were copied for it. */
    def copiedBy(list: Int, bytes: Int, fill: Byte): Long = {
      val (before, length) = (addressOf(list), Rows.valueLength(rowOf(list)))
      append(list, bytes, fill)
      if (addressOf(list) == before) 0L else length
    }

    def valueOf(list: Int): Array[Byte] = {
      val row = rowOf(list)
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

    def close(): Unit = {
      table.close()
      pool.trim()
      assert(pool.reservedBytes == 0)
    }
  }

  private def committed(lists: Int, bytes: Int): Lists = {
    val made = new Lists
    made.transaction((0 until lists).foreach(made.append(_, bytes, 0)))
    made
  }

  /** The page that is being filled counts as a whole. */
  private def assertBounded(memory: TableMemory, listBytes: Long): Unit =
    assert(memory.pageBytes <= listBytes * 3 / 2 + PagePool.PageBytes, s"$memory for $listBytes bytes")

  /** Lists of the same size in all: long ones, which have pages of their own, and ones that share pages. */
  private val shapes = for ((lists, elements) <- Seq((1, 10000), (20, 500), (500, 50)))
    yield (lists, elements, if (elements < 100) 40 else 100)

  for ((lists, elements, bytes) <- shapes) {
    test(
      s"after a thousand transactions that append to $lists lists of $elements elements, these take at most half as much again"
    ) {
      val in = committed(lists, elements * bytes)
      var copied = 0L
      for (version <- 1 to 1000) in.transaction(copied += in.copiedBy(version % lists, bytes, version.toByte))
      assert(copied <= (lists * elements + 1000 * 10) * bytes, "each list once, and ten times what was appended")
      val listBytes = in.table.keyValueBytes(0)
      assert(listBytes >= (lists * elements + 1000) * bytes)
      val memory = in.table.memory
      info(f"${memory.pageBytes.toDouble / listBytes}%.2f times the lists")
      assertBounded(memory, listBytes)
      val last = in.valueOf(1000 % lists)
      assert(last.takeRight(bytes).forall(_ == 1000.toByte))
      in.table.stepBack()
      assert(in.valueOf(1000 % lists).sameElements(last.dropRight(bytes)), "the version before has one element less")
      in.close()
    }

    test(
      s"a thousand appends in one transaction to $lists lists of $elements elements take at most half as much again"
    ) {
      val in = committed(lists, elements * bytes)
      in.transaction((1 to 1000).foreach(number => in.append(number % lists, bytes, number.toByte)))
      in.transaction(in.append(0, bytes, 1))
      in.transaction(in.append(0, bytes, 1))
      val (memory, listBytes) = (in.table.memory, in.table.keyValueBytes(0))
      info(f"${memory.pageBytes.toDouble / listBytes}%.2f times the lists")
      assertBounded(memory, listBytes)
      in.close()
    }
  }

  test("appends that follow others which were taken back use the room of these") {
    val in = committed(1, 1000000)
    def takenBack(fill: Byte): Unit = {
      in.table.begin()
      in.append(0, 100, fill)
      in.table.abort()
      while (in.table.maintain(4)) ()
    }
    for (number <- 1 to 1000) {
      takenBack(1)
      in.transaction(in.append(0, 100, 2))
    }
    assertBounded(in.table.memory, in.table.keyValueBytes(0))
    assert(in.valueOf(0).takeRight(100000).forall(_ == 2))
    in.close()
  }

  test("a tail that was taken back is not overwritten while somebody reads it") {
    val in = committed(1, 10000)
    in.transaction(in.append(0, 100, 1))
    in.table.readersActive(7L)
    in.table.begin()
    in.append(0, 100, 2)
    val key = "list 0".getBytes
    val row = in.table.family(0).get(key, base, key.length)
    in.table.abort()
    for (number <- 3 to 9) in.transaction(in.append(0, 100, number.toByte))
    val tail = Rows.valueAddress(row) + 10100
    assert((0 until 100).forall(i => Platform.getByte(null, tail + i) == 2))
    in.table.readersEnded(7L)
    assert(in.valueOf(0).drop(10100).sameElements((3 to 9).flatMap(number => Seq.fill(100)(number.toByte))))
    in.close()
  }

  test("what a list outgrew is used again when its readers have ended, and not before") {
    val in = committed(500, 2000)
    in.transaction((0 until 500).foreach(in.append(_, 100, 1)))
    // so that no older version has a part of what is read
    for (_ <- 1 to 3) in.transaction(in.append(500, 100, 1))
    in.table.readersActive(7L)
    val read = (0 until 500).map(in.addressOf)
    in.transaction((0 until 500).foreach(in.append(_, 400, 2)))
    assert((0 until 500).forall(list => in.addressOf(list) != read(list)), "each list has outgrown its room")
    for (fill <- 3 to 20) in.transaction((0 until 500).foreach(in.append(_, 100, fill.toByte)))
    def isWhole(at: Long): Boolean =
      (0 until 2100).forall(i => Platform.getByte(null, at + i) == (if (i < 2000) 0 else 1))
    assert(read.forall(isWhole))
    val held = in.table.memory.pageBytes
    in.table.readersEnded(7L)
    while (in.table.maintain(4)) ()
    in.transaction(in.append(0, 100, 21))
    assertBounded(in.table.memory, in.table.keyValueBytes(0))
    assert(in.table.memory.pageBytes < held)
    in.close()
  }

  test("an append that does not fit into the cap leaves the list as it was") {
    for (pages <- 5 to 40) {
      val pool = new PagePool(pages * PagePool.PageBytes)
      val table = new StoreTable(pool)
      val family = table.addFamily(0, ordered = false, multiValue = true)
      val (key, element) = ("key".getBytes, Array.fill(1000)(1.toByte))
      var committed = 0
      intercept[LaminaError](while (true) {
        table.begin()
        for (_ <- 1 to 10) family.append(key, base, key.length, element, base, element.length)
        table.commit()
        committed += 10
      })
      assert(table.inTransaction)
      table.abort()
      val row = family.get(key, base, key.length)
      assert((if (row == 0L) 0 else Rows.valueLength(row)) == committed * 1000, s"with $pages pages")
      assert(table.keyValueBytes(0) == (if (row == 0L) 0 else committed * 1000 + key.length))
      table.close()
      pool.trim()
      assert(pool.reservedBytes == 0)
    }
  }
}
