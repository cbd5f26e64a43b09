package org.apache.spark.sql.lamina.table

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/** What happens at the cap: nothing leaks where something does not fit, and what can give way does. */
class MemoryCapSuite extends AnyFunSuite {
  private val base = Platform.BYTE_ARRAY_OFFSET.toLong

  private def pool(bytes: Long): PagePool = new PagePool(bytes)

  private def newTable(pool: PagePool, ordered: Boolean = false): StoreTable = {
    val table = new StoreTable(pool)
    table.addFamily(0, ordered, multiValue = false)
    table
  }

  private def put(table: StoreTable, number: Int, valueBytes: Int): Unit = {
    val key = java.nio.ByteBuffer.allocate(8).putLong(number * 0x9e3779b97f4a7c15L).array
    table.family(0).put(key, base, key.length, new Array[Byte](valueBytes), base, valueBytes)
  }

  /** Closes a table that has rows; whether it had. */
  private def closed(table: StoreTable): Boolean = {
    val had = table.memory.total > 0
    table.close()
    had
  }

  /** Puts rows in a transaction until there is no room; the error's kind. */
  private def fill(table: StoreTable, rows: Int, valueBytes: Int): String = {
    table.begin()
    try {
      (0 until rows).foreach(put(table, _, valueBytes))
      table.commit()
      "none"
    } catch { case error: LaminaError => table.abort(); error.kind }
  }

  test("a restore that does not fit gives back what it had taken") {
    val small = pool(8L << 20)
    val table = newTable(small)
    val error = intercept[LaminaError](table.reserve(0, 50000000L))
    assert(error.kind == LaminaError.MemoryCap)
    assert(fill(table, rows = 100, valueBytes = 10) == "none", "it can be used on")
    table.close()
    small.trim()
    assert(small.reservedBytes == 0)
  }

  Seq(false, true).foreach { ordered =>
    test(s"an index that cannot grow or split leaks nothing, ${if (ordered) "ordered" else "by hash"}") {
      for (pages <- 2 to 62 by 3) {
        val tight = pool(pages * PagePool.PageBytes)
        val table = newTable(tight, ordered)
        assert(fill(table, rows = 1000000, valueBytes = 0) == LaminaError.MemoryCap)
        table.close()
        tight.trim()
        assert(tight.reservedBytes == 0, s"with $pages pages")
      }
    }
  }

  test("what gives way to memory pressure is there for who asked") {
    val shared = pool(10L << 20)
    val (parked, wanting) = (newTable(shared), newTable(shared))
    assert(fill(parked, rows = 6000, valueBytes = 1000) == "none")
    shared.onPressure(() => closed(parked))
    assert(fill(wanting, rows = 6000, valueBytes = 1000) == "none")
    wanting.close()
  }

  test("no more tables give way than it takes") {
    val shared = pool(20L << 20)
    val parked = Seq.fill(3)(newTable(shared))
    parked.foreach(table => assert(fill(table, rows = 5000, valueBytes = 1000) == "none"))
    shared.onPressure(() => parked.exists(closed))
    val wanting = newTable(shared)
    assert(fill(wanting, rows = 10000, valueBytes = 1000) == "none")
    assert(parked.map(_.memory.total > 0) == Seq(false, false, true))
  }

  test("reclaim takes no memory of others: at the cap it gives up") {
    val shared = pool(3 * PagePool.PageBytes)
    var asked = 0
    shared.onPressure(() => { asked += 1; false })
    (1 to 3).foreach(_ => shared.page())
    assert(PagePool.inBackground(intercept[LaminaError](shared.page()).kind) == LaminaError.MemoryCap)
    assert(asked == 0)
    intercept[LaminaError](shared.page())
    assert(asked == 1)
  }

  test("pages of a table that gave way are used where no whole chunk is free") {
    val shared = pool(9L << 20)
    val (parked, wanting) = (newTable(shared), newTable(shared))
    Seq(parked, wanting).foreach(_.begin())
    (0 until 3500).foreach(n => Seq(parked, wanting).foreach(put(_, n, 1000)))
    Seq(parked, wanting).foreach(_.commit())
    shared.onPressure(() => closed(parked))
    assert(fill(wanting, rows = 3500, valueBytes = 900) == "none")
    wanting.close()
  }

  private def layered(pool: PagePool, below: Below, spills: () => Spill = () => new MemorySpill): StoreTable = {
    val table = new StoreTable(pool, layered = true, spills)
    table.addFamily(0, ordered = false, multiValue = false)
    table.standOn(below)
    table.begin()
    table
  }

  private def below(rows: Int, valueBytes: Int): Below =
    new MemoryBelow(1L, (0 until rows).map(row => (0, f"$row%08d") -> "v" * valueBytes).toMap)

  private def read(table: StoreTable, row: Int): Boolean = {
    val key = f"$row%08d".getBytes
    table.family(0).get(key, base, key.length) != 0L
  }

  Seq(false, true).foreach { reads =>
    test(s"many transactions at once leave room for one more${if (reads) ", whatever they read besides" else ""}") {
      val shared = pool(8L << 20)
      val known = below(2000, 100)
      val tables = Seq.fill(40)(layered(shared, known))
      // more than there is memory for; each alone has less than a sixteenth of it
      for (row <- 0 until 2000; table <- tables) {
        put(table, row, valueBytes = 100)
        if (reads) assert(read(table, row))
      }
      assert(tables.exists(_.isSpilled))
      val newcomer = layered(shared, known)
      for (row <- 0 until 2000) put(newcomer, row, valueBytes = 100)
      (tables :+ newcomer).foreach { table =>
        table.settleSpill()
        table.commit()
        table.close()
      }
      shared.trim()
      assert(shared.reservedBytes == 0)
    }
  }

  /** Fills what is left, in a transaction that goes on. */
  private def fillUp(table: StoreTable): Unit = {
    table.begin()
    val error = intercept[LaminaError]((0 until 1000000).foreach(put(table, _, valueBytes = 1000)))
    assert(error.kind == LaminaError.MemoryCap)
  }

  test("rows that are the same below go before a transaction fails") {
    val shared = pool(8L << 20)
    val table = layered(shared, below(40, 100000))
    (0 until 40).foreach(row => assert(read(table, row)))
    val others = newTable(shared)
    fillUp(others)
    put(table, 1, valueBytes = 100000)
    assert(table.rows == 1)
    Seq(table, others).foreach(_.close())
  }

  Seq(false, true).foreach { isLayered =>
    test(
      s"the base is read where there is no memory for a map of it${if (isLayered) ", above another state" else ""}"
    ) {
      val shared = pool(8L << 20)
      val table = if (isLayered) layered(shared, below(0, 0)) else newTable(shared)
      val family = table.family(0)
      def keyOf(row: Int) = f"$row%08d".getBytes
      def change(row: Int, length: Int): Unit =
        if (length < 0) family.remove(keyOf(row), base, 8)
        else family.put(keyOf(row), base, 8, new Array[Byte](length), base, length)
      if (!isLayered) table.begin()
      for (row <- 0 until 1000) change(row, row % 100)
      table.commit()
      table.begin()
      // some again and again, and some that are new
      for (row <- 0 until 1500; length <- Seq(110, -1, row % 100, 120).take(1 + row % 4)) change(row, length)
      val others = newTable(shared)
      fillUp(others)
      for (row <- 0 until 1500) {
        val found = family.getBase(keyOf(row), base, 8)
        assert((if (found == 0L) -1 else Rows.valueLength(found)) == (if (row < 1000) row % 100 else -1))
      }
      // of others than those that are again what they were: of a table that stands on nothing these are there, too
      val changed = scala.collection.mutable.Map.empty[String, Int]
      table.changeSet { (_, op, keyBase, keyOffset, keyLength, _, _, length) =>
        changed(TableModel.text(keyBase, keyOffset, keyLength)) = if (op == Ops.Delete) -1 else length
      }
      for (row <- 0 until 1500 if row % 4 != 2)
        assert(changed.get(f"$row%08d").contains(Map(
          0 -> 110,
          1 -> -1,
          3 -> 120
        )(row % 4)) || row >= 1000 && row % 4 == 1)
      for (row <- 0 until 1000 if isLayered && row % 4 == 2) assert(!changed.contains(f"$row%08d"), s"row $row")
      Seq(table, others).foreach(_.close())
      shared.trim()
      assert(shared.reservedBytes == 0)
    }
  }

  test("rows of the base that are nowhere else go to the disk before a transaction fails") {
    val shared = pool(8L << 20)
    val table = layered(shared, below(0, 0))
    for (row <- 0 until 3000) put(table, row, valueBytes = 1000)
    table.settleSpill()
    table.commit()
    assert(table.spillsBelow == 0)
    val others = newTable(shared)
    fillUp(others)
    table.begin()
    for (row <- 3000 until 5000) put(table, row, valueBytes = 1000)
    assert(table.spillsBelow == 1 && table.rows == 5000)
    Seq(table, others).foreach(_.close())
  }

  test("what is sent as a whole gives up no rows while others read them: what its scan goes by is found before") {
    val shared = pool(8L << 20)
    val table = layered(shared, below(40, 100000))
    (0 until 40).foreach(row => assert(read(table, row)))
    for (row <- 100 until 600) put(table, row, valueBytes = 100)
    val others = newTable(shared)
    fillUp(others)
    table.settleSpill()
    table.settleScan()
    val before = table.memory
    var changed = 0
    table.changeSet((_, _, _, _, _, _, _, _) => changed += 1)
    assert(changed == 500)
    assert(table.snapshot((_, _, _, _, _, _, _, _) => ()) == 540)
    assert(table.memory == before)
    table.commit()
    Seq(table, others).foreach(_.close())
    shared.trim()
    assert(shared.reservedBytes == 0)
  }

  test("a disk that gets full while changes are put there for the first time leaves nothing of them there") {
    var left = 50
    def isFull(): Boolean = { left -= 1; left < 0 }
    var spills = Seq.empty[MemorySpill]
    val table = layered(
      pool(8L << 20),
      below(100, 100),
      () => { spills :+= new MemorySpill(() => isFull()); spills.last }
    )
    for (row <- 0 until 200) put(table, row, valueBytes = 100)
    val error = intercept[LaminaError](table.spill())
    assert(error.kind == LaminaError.StorageFailed && !table.isSpilled)
    left = 50
    assert(!table.spillEarly() && !table.isSpilled && !table.canSpill)
    // whoever has to asks again
    left = 1000
    assert(table.spill() && table.isSpilled && spills.size == 3)
    left = 10
    for (row <- 200 until 300) put(table, row, valueBytes = 100)
    intercept[LaminaError](table.spill())
    // what is only there stays
    assert(table.isSpilled && table.rows == 300)
    table.abort()
    assert(table.rows == 0)
    table.close()
  }

  test("a key for which there is no memory leaves no row behind") {
    // whatever is refused: a page, a part of an index, of a log, or of the keys in order
    for (pages <- 2 to 40; valueBytes <- Seq(0, 40)) {
      val tight = pool(pages * PagePool.PageBytes)
      val table = newTable(tight, ordered = true)
      assert(fill(table, rows = 1000000, valueBytes) == LaminaError.MemoryCap)
      for (_ <- 1 to 2) {
        table.begin()
        table.commit()
      }
      while (table.maintain(100)) ()
      assert(table.family(0).liveBytes == 0, s"with $pages pages")
      table.close()
    }
  }
}
