package org.apache.spark.sql.lamina.table

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.unsafe.Platform

/** Many column families with few rows each take little memory, and their metrics say how much. */
class SmallFamiliesSuite extends AnyFunSuite {
  private val base = Platform.BYTE_ARRAY_OFFSET.toLong
  private val most = 16L << 10

  private def newPool(): PagePool = new PagePool(4L << 30)

  private def put(table: StoreTable, family: Int, number: Int, version: Int, valueBytes: Int = 60): Unit = {
    val key = s"key $number".getBytes
    val value = Array.fill(valueBytes)(version.toByte)
    table.family(family).put(key, base, key.length, value, base, value.length)
  }

  private def valueOf(table: StoreTable, family: Int, number: Int): Seq[Byte] = {
    val key = s"key $number".getBytes
    val row = table.family(family).get(key, base, key.length)
    (0 until Rows.valueLength(row)).map(i => Platform.getByte(null, Rows.valueAddress(row) + i))
  }

  /** Tables that have seen three batches, in each of which every row changed. */
  private def tables(pool: PagePool, count: Int, families: Int, rows: Int): Seq[StoreTable] =
    Seq.fill(count) {
      val table = new StoreTable(pool)
      (0 until families).foreach(id => table.addFamily(id, ordered = id % 2 == 1, multiValue = false))
      for (version <- 1 to 3) {
        table.begin()
        for (id <- 0 until families; number <- 1 to rows) put(table, id, number, version)
        table.commit()
        while (table.maintain(4)) ()
      }
      table
    }

  Seq((800, 1), (200, 10)).foreach { case (stores, families) =>
    test(s"$stores stores of $families column families with few rows take no more than 16 KiB a family") {
      val pool = newPool()
      val all = tables(pool, stores, families, rows = 10)
      val each = pool.reservedBytes / (stores * families)
      val counted = all.map(_.memory.total).sum
      info(s"$each bytes a family are reserved, ${counted / (stores * families)} are counted by the tables")
      assert(each <= most)
      assert(counted <= pool.reservedBytes)
      // what is reserved and belongs to no table: at most a page that is not full for each size of what is smaller
      assert(pool.reservedBytes - counted <= 24 * PagePool.PageBytes)
      for (table <- all.take(5); id <- 0 until families; number <- 1 to 10) {
        assert(valueOf(table, id, number) == Seq.fill(60)(3.toByte))
      }
      all.foreach(_.close())
      pool.trim()
      assert(pool.reservedBytes == 0)
    }
  }

  test("the memory that a table counts for its rows is what its pages take") {
    val pool = newPool()
    val table = tables(pool, 1, 1, rows = 1).head
    val before = pool.reservedBytes
    val counted = table.memory.pageBytes
    assert(counted > 0 && counted % 4096 == 0, s"$counted bytes are no number of whole pages")
    assert(before >= counted)
    table.close()
  }

  test("a small column family that grows by rows of all sizes keeps each of them") {
    val pool = newPool()
    val table = new StoreTable(pool)
    table.addFamily(0, ordered = false, multiValue = false)
    val sizes = Seq(0, 100, 900, 1100, 4000, 4080, 5000, 20000, 65000, 66000, 262128, 300000)
    for (version <- 1 to 20) {
      table.begin()
      sizes.zipWithIndex.foreach { case (bytes, number) => put(table, 0, number, version, bytes) }
      for (number <- 100 until 100 + version * 50) put(table, 0, number, version, number % 300)
      table.commit()
      while (table.maintain(4)) ()
      sizes.zipWithIndex.foreach { case (bytes, number) =>
        assert(valueOf(table, 0, number) == Seq.fill(bytes)(version.toByte), s"$bytes bytes, version $version")
      }
      for (number <- 100 until 100 + version * 50) {
        assert(valueOf(table, 0, number) == Seq.fill(number % 300)(version.toByte))
      }
    }
    assert(table.memory.deadBytes <= table.memory.pageBytes / 2)
    table.close()
    pool.trim()
    assert(pool.reservedBytes == 0)
  }
}
