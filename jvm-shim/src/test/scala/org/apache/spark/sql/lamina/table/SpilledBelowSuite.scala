package org.apache.spark.sql.lamina.table

import org.scalatest.funsuite.AnyFunSuite

/** A state with sets of changes on top of it. */
class SpilledBelowSuite extends AnyFunSuite {
  import TableModel._

  private val Keys = 3000

  private def keyOf(row: Int): String = f"$row%08d"

  test("a scan over many sets of changes reads what lies below them once") {
    var reads = 0
    val base = new Below {
      private val rows = new MemoryBelow(1L, (0 until Keys by 2).map(row => (Plain, keyOf(row)) -> "base").toMap)
      override def version: Long = 1L
      override def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] =
        rows.get(family, keyBase, keyOffset, keyLength)
      override def read(family: Int, from: Array[Byte], above: Boolean, until: Array[Byte], into: BelowEntries)
          : Unit = {
        reads += 1
        rows.read(family, from, above, until, into)
      }
    }
    var expected = (0 until Keys by 2).map(row => keyOf(row) -> "base").toMap
    var below: Below = base
    // some everywhere, and many in one place
    for (depth <- 1 to 8) {
      val spill = new MemorySpill
      for (row <- (depth until Keys by 37) ++ (100 * depth until 100 * depth + 90)) {
        val value = Option.when(row % 5 != 0)(s"by $depth")
        spill.set(Plain, keyOf(row), value)
        expected = value.fold(expected - keyOf(row))(value => expected + (keyOf(row) -> value))
      }
      below = new SpilledBelow(below, spill, depth + 1L)
    }
    var found = Vector.empty[(String, String)]
    BelowEntries.foreach(below.read(Plain, _, _, null, _)) { (key, value) =>
      found :+= text(key, Base, key.length) -> text(value, Base, value.length)
      true
    }
    assert(found == expected.toVector.sorted)
    // it gives three rows a read
    assert(reads < Keys / 2 / 3 * 4)
    below.close()
  }

  test("removed keys are passed over by many at a time") {
    var reads = 0
    val base = new Below {
      override def version: Long = 1L
      override def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] = bytes("base")
      override def read(family: Int, from: Array[Byte], above: Boolean, until: Array[Byte], into: BelowEntries)
          : Unit = {
        reads += 1
        var row = if (from == null) 0 else text(from, Base, from.length).toInt + (if (above) 1 else 0)
        while (row < Keys && into.hasRoom) {
          into.add(bytes(keyOf(row)), bytes("base"))
          row += 1
        }
        into.isLast = row == Keys
      }
    }
    val spill = new MemorySpill
    (0 until Keys - 1).foreach(row => spill.set(Plain, keyOf(row), None))
    var found = Vector.empty[String]
    BelowEntries.foreach(new SpilledBelow(base, spill, 2L).read(Plain, _, _, null, _)) { (key, _) =>
      found :+= text(key, Base, key.length)
      true
    }
    assert(found == Vector(keyOf(Keys - 1)))
    assert(reads < 50)
  }
}
