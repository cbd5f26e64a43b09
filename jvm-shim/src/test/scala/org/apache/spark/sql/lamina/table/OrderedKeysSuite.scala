package org.apache.spark.sql.lamina.table

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.AllocatedBytes

/** What ordered keys cost: off-heap bytes in every order of insertion, and the heap's bytes of a scan. */
class OrderedKeysSuite extends AnyFunSuite {
  import TableModel.{bytes, value, Base}

  private def withFamily(body: (StoreTable, FamilyTable) => Unit): Unit = {
    val table = new StoreTable(new PagePool(1L << 30))
    try {
      val family = table.addFamily(0, ordered = true, multiValue = false)
      table.begin()
      body(table, family)
    } finally table.close()
  }

  private def put(family: FamilyTable, key: String): Unit =
    family.put(bytes(key), Base, key.length, bytes("v"), Base, 1)

  /** What the ordered keys take, in parts of what the keys would take without a gap: their bytes and 8 more for each. */
  private def share(keys: Iterable[String]): Double = {
    var taken = 0.0
    withFamily { (table, family) =>
      keys.foreach(put(family, _))
      taken = table.memory.orderedBytes.toDouble / keys.iterator.map(_.length + 8L).sum
    }
    taken
  }

  private def time(at: Int): String = f"$at%016d"

  private def group(number: Int): String = f"group $number%08d "

  private def rowsOf(family: FamilyTable, prefix: Array[Byte], until: Array[Byte]): Int = {
    val cursor = family.range(prefix, until, startsAtBase = false)
    var rows = 0
    while (cursor.next() != 0L) rows += 1
    rows
  }

  test("keys that come in ascending order leave full blocks behind") {
    assert(share((0 until 100000).map(time)) < 1.01)
    assert(share((0 until 3000).map(at => time(at) + "x" * (at % 200))) < 1.05)
  }

  /** Keys of so many groups, which come in another order in each batch, with some ascending times for each. */
  private def batches(number: Int, groups: Int, times: Int): Seq[String] = {
    val random = new Random(1)
    (0 until number).flatMap { batch =>
      random.shuffle((0 until groups).toVector).flatMap { at =>
        (0 until times).map(next => group(at) + time(times * batch + next))
      }
    }
  }

  test("keys that ascend within each of some groups leave full blocks behind") {
    assert(share(for (at <- 0 until 5000; number <- 0 until 20) yield group(number) + time(at)) < 1.06)
    assert(share(batches(400, groups = 100, times = 5)) < 1.2)
  }

  test("keys that come in no order, or few of a group together, fill blocks as well as halves do") {
    assert(share(new Random(1).shuffle((0 until 100000).toVector).map(time)) < 1.65)
    assert(share(batches(20, groups = 1000, times = 5)) < 1.4)
  }

  test("a scan of a prefix with one row allocates a cursor and its key, however many keys lie beside it") {
    val bounds = Seq(1, 10000).map { others =>
      var allocated = 0L
      withFamily { (_, family) =>
        (0 until others).foreach(number => put(family, group(number) + time(7)))
        val prefix = bytes(group(others / 2))
        val until = KeyOrder.successor(prefix)
        allocated = AllocatedBytes.of(if (rowsOf(family, prefix, until) != 1) fail("not one row"))
      }
      allocated
    }
    // two objects: the cursor, 80 bytes, and an array for a key of 31 bytes
    assert(bounds.forall(_ <= 80 + 48), s"$bounds bytes a scan")
  }

  test("a scan that finds nothing allocates its cursor alone") {
    withFamily { (_, family) =>
      (0 until 1000).foreach(number => put(family, group(2 * number) + time(7)))
      val prefix = bytes(group(501))
      val until = KeyOrder.successor(prefix)
      val allocated = AllocatedBytes.of(if (rowsOf(family, prefix, until) != 0) fail("a row"))
      assert(allocated <= 80)
    }
  }

  test("a cursor gives each key once and in order while others come and go, and all that stay") {
    for (seed <- 1 to 20) withFamily { (table, family) =>
      val random = new Random(seed)
      def any(): String = time(random.nextInt(4000)) + "k" * random.nextInt(40)
      val stay = Seq.fill(500)(any()).toSet
      stay.foreach(put(family, _))
      table.commit()
      table.begin()
      val cursor = family.range(bytes(time(500)), bytes(time(3500)), startsAtBase = false)
      val seen = Seq.newBuilder[String]
      var row = cursor.next()
      while (row != 0L) {
        seen += TableModel.keyOf(row)
        (0 until random.nextInt(30)).foreach { _ =>
          val key = any()
          if (!stay(key)) if (random.nextInt(3) == 0) family.remove(bytes(key), Base, key.length) else put(family, key)
        }
        // a commit takes the keys out that the transaction before it removed
        if (random.nextInt(20) == 0) {
          if (random.nextInt(4) == 0) table.abort() else table.commit()
          table.begin()
        }
        row = cursor.next()
      }
      val keys = seen.result()
      assert(keys == keys.distinct.sorted)
      assert(keys.forall(key => key >= time(500) && key < time(3500)))
      assert(stay.filter(key => key >= time(500) && key < time(3500)).subsetOf(keys.toSet))
      assert(stay.forall { key =>
        value(family.get(bytes(key), Base, key.length)).contains("v")
      })
    }
  }
}
