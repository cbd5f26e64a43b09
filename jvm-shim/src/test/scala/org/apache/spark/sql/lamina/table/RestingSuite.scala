package org.apache.spark.sql.lamina.table

import org.scalatest.funsuite.AnyFunSuite

/** What waits for readers, and looks that are left out. */
class RestingSuite extends AnyFunSuite {

  test("all rows of a log are given up that was begun with some of them") {
    val pool = new PagePool(64L << 20)
    val table = new StoreTable(pool)
    val family = table.addFamily(0, ordered = false, multiValue = false)
    val resting = new Resting(pool)
    val log = new LongLog(pool)
    (1 to 10).foreach(_ => log.add(0L, 0L))
    resting.add(family, log, newRows = true)
    assert(resting.freeRows(4L), "six are left")
    assert(!resting.freeRows(Long.MaxValue))
    assert(resting.logBytes == 0L)
    table.close()
  }

  test("entries that were read keep no value when others are read in their place") {
    val entries = new BelowEntries
    (1 to 20).foreach(n => entries.add(Array(n.toByte), new Array[Byte](1 << 20)))
    entries.clear()
    assert(entries.values.forall(_ == null) && entries.keys.forall(_ == null))
  }

  test("what is in vain is left out ever more often, and done at once when it may be of use") {
    val looks = new Backoff
    def untilDue(): Int = Iterator.continually(looks.isDue).takeWhile(!_).size
    val leftOut = (1 to 7).map { _ =>
      val skipped = untilDue()
      looks.done(gave = false)
      skipped
    }
    assert(leftOut == Seq(0, 1, 3, 7, 15, 31, 31))
    untilDue()
    looks.done(gave = true)
    assert(untilDue() == 0)
    looks.done(gave = false)
    looks.reset()
    assert(untilDue() == 0)
  }
}
