package org.apache.spark.sql.lamina

import org.scalatest.concurrent.Eventually.{eventually, timeout}
import org.scalatest.funsuite.AnyFunSuite
import org.scalatest.time.SpanSugar._

import org.apache.spark.sql.lamina.table.PagePool

/** Which provider gets a table of another one. */
class TableLeaseSuite extends AnyFunSuite {
  private val content = "L1.3.1.o.-.0123456789abcdef0123456789abcdef"
  private val (first, second) = (new Object, new Object)
  private var stores = 0

  private def fixture(): (StoreKey, LiveTable) = {
    stores += 1
    val key = StoreKey("checkpoint", 0L, stores, "default")
    val live = new LiveTable(new PagePool(64L << 20, 0L, () => System.nanoTime() / 1000000))
    live.owner = first
    commit(live, content)
    TableLease.register(key, live)
    (key, live)
  }

  private def commit(live: LiveTable, attempt: String): Unit = live.synchronized {
    val open = new Open(null, writes = true)
    live.enter(open)
    live.begin(open)
    live.advance(Position(live.at.version + 1, attempt, ColumnFamilies.Empty, "digest"))
    live.leave(open)
  }

  test("a table goes to another provider that asks for the attempt it holds, and to one only") {
    val (key, live) = fixture()
    assert(TableLease.take(key, content, second).contains(live))
    assert(live.owner eq second)
    assert(TableLease.take(key, content, second).isEmpty)
    TableLease.drop(key, live)
  }

  test("another attempt, another checkpoint or another store gets nothing") {
    val (key, live) = fixture()
    assert(TableLease.take(key, content.replace('0', '1'), second).isEmpty)
    assert(TableLease.take(key.copy(checkpoint = "made anew"), content, second).isEmpty)
    assert(TableLease.take(key.copy(name = "left"), content, second).isEmpty)
    assert(live.owner eq first)
    TableLease.drop(key, live)
  }

  test("a table one version ahead is taken for the version that it can step back to") {
    val (key, live) = fixture()
    commit(live, "L1.4.1.o.-.ffffffffffffffffffffffffffffffff")
    assert(TableLease.take(key, content, second).contains(live))
    TableLease.drop(key, live)
  }

  test("a provider with an open transaction keeps its table") {
    val (key, live) = fixture()
    live.synchronized {
      val open = new Open(null, writes = true)
      live.enter(open)
      live.begin(open)
    }
    assert(TableLease.take(key, content, second).isEmpty)
    live.synchronized(live.abort())
    assert(TableLease.take(key, content, second).contains(live))
    TableLease.drop(key, live)
  }

  test("memory pressure closes parked tables and leaves those in use alone") {
    val (key, parked) = fixture()
    val (other, used) = fixture()
    parked.owner = null
    TableLease.park(key, parked, 60000L)
    TableLease.releaseMemory()
    assert(parked.closed)
    assert(!used.closed)
    assert(TableLease.take(key, content, second).isEmpty)
    TableLease.drop(other, used)
  }

  test("where a store is loaded anew its parked tables are closed, and neither those in use nor another store's") {
    val (key, parked) = fixture()
    val (other, kept) = fixture()
    Seq(parked, kept).foreach(_.owner = null)
    TableLease.park(key, parked, 60000L)
    TableLease.park(other, kept, 60000L)
    val used = new LiveTable(new PagePool(64L << 20, 0L, () => System.nanoTime() / 1000000))
    used.owner = first
    TableLease.register(key, used)
    TableLease.releaseOf(key)
    assert(parked.closed)
    assert(!used.closed && !kept.closed)
    TableLease.drop(key, used)
    TableLease.drop(other, kept)
  }

  test("without a time to stay a table is closed at once") {
    val (key, live) = fixture()
    live.owner = null
    TableLease.park(key, live, 0L)
    assert(live.closed)
  }

  test("a table that was parked while it was being taken counts as in use") {
    val (key, live) = fixture()
    var taken = Option.empty[LiveTable]
    val taker = new Thread(() => taken = TableLease.take(key, content, second))
    live.synchronized {
      taker.start()
      eventually(timeout(60.seconds))(assert(taker.getState == Thread.State.BLOCKED))
      live.owner = null
      TableLease.park(key, live, 60000L)
    }
    taker.join()
    assert(taken.contains(live))
    val presser = new Thread(() => TableLease.releaseMemory())
    live.synchronized {
      presser.start()
      presser.join(60000L)
      assert(!presser.isAlive, "it waits for a table in use")
    }
    TableLease.drop(key, live)
  }

  test("a parked table that is taken again outlives its time") {
    val (key, live) = fixture()
    live.owner = null
    TableLease.park(key, live, 60000L)
    assert(TableLease.take(key, content, second).contains(live))
    TableLease.releaseMemory()
    TableLease.expire()
    assert(!live.closed)
    TableLease.drop(key, live)
  }
}
