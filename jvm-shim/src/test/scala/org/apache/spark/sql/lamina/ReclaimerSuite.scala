package org.apache.spark.sql.lamina

import java.util.concurrent.{CompletableFuture, CountDownLatch, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table._
import org.apache.spark.unsafe.Platform

/** How long it is waited for tables that are asked for memory. */
class ReclaimerSuite extends AnyFunSuite {
  private val offset = Platform.BYTE_ARRAY_OFFSET.toLong
  private val families = TestFamilies.one

  private object Owner extends TableOwner {
    override def leftAll(): Unit = ()
    override def isStopped: Boolean = false
    override def stayMs: Long = 60000L
  }

  /** A table at rest of changed rows, whose way to the disk is as long as somebody wants. */
  private final class Fixture extends AutoCloseable {
    val pool = new PagePool(64L << 20)
    val registry = new TableRegistry(() => 0L, (_, _) => ())
    val asked = new AtomicInteger()
    val begun, goesOn = new CountDownLatch(1)
    @volatile var isDiskFull = false
    private var tables = List.empty[LiveTable]
    val live = newTable { () =>
      asked.incrementAndGet()
      begun.countDown()
      goesOn.await(60, TimeUnit.SECONDS)
      if (isDiskFull) throw new LaminaError(LaminaError.StorageFailed, "no space is left on the disk")
      SpillDatabase.open()
    }

    def newTable(openSpill: () => Spill): LiveTable = {
      val live = new LiveTable(pool, registry, layers = Some(Layers(100)), openSpill = openSpill)
      tables ::= live
      registry.add(live, Owner)
      registry.enter(live, Owner)
      fill(live)
      live
    }

    private def fill(live: LiveTable): Unit = live.synchronized {
      val open = new Open(null, writes = true)
      live.enter(open)
      live.begin(open)
      live.announce(families)
      for (row <- 0 until 1000) {
        val key = f"$row%08d".getBytes
        live.table.family(0).put(key, offset, key.length, new Array[Byte](1000), offset, 1000)
      }
      live.settle()
      live.advance(Position(1, s"L1.1.1.o.-.${"a" * 32}", live.working), 1000 * 1008)
      live.leave(open)
    }

    def makeRoom(patienceMs: Long = 60000): CompletableFuture[Boolean] =
      CompletableFuture.supplyAsync(() => Reclaimer.makeRoom(registry, pool, patienceMs = patienceMs))

    /** The same, of which the first table has begun to put its rows on the disk, and does not go on. */
    def begunRound(patienceMs: Long = 60000): CompletableFuture[Boolean] = {
      val round = makeRoom(patienceMs)
      assert(begun.await(60, TimeUnit.SECONDS))
      round
    }

    override def close(): Unit = tables.foreach(table => table.synchronized(table.table.close()))
  }

  private def result(future: CompletableFuture[Boolean]): Boolean = future.get(60, TimeUnit.SECONDS)

  private def withTables(test: Fixture => Unit): Unit = {
    val fixture = new Fixture
    try test(fixture)
    finally fixture.close()
  }

  test("rows on their way to the disk are waited for, however long that takes") {
    withTables { fixture =>
      import fixture._
      // on a busy machine a thread may get no turn for some time before it begins
      val waiting = begunRound(patienceMs = 200)
      // much more than the patience
      Thread.sleep(1000)
      assert(!waiting.isDone)
      goesOn.countDown()
      assert(result(waiting))
      assert(live.table.memory.total < 500000)
    }
  }

  test("who asks meanwhile waits for the same") {
    withTables { fixture =>
      import fixture._
      val first = begunRound()
      val others = Seq.fill(4)(makeRoom())
      Thread.sleep(100)
      assert((first +: others).forall(!_.isDone))
      goesOn.countDown()
      assert((first +: others).forall(result))
      assert(asked.get == 1)
    }
  }

  test("who joins others hears of tables that have come to rest since") {
    withTables { fixture =>
      import fixture._
      val first = begunRound()
      val later = newTable(() => SpillDatabase.open())
      val joined = makeRoom()
      Thread.sleep(100)
      isDiskFull = true
      goesOn.countDown()
      assert(!result(first))
      assert(result(joined))
      assert(later.table.memory.total < 500000)
    }
  }

  test("a table whose lock another one has is not waited for") {
    withTables { fixture =>
      import fixture._
      goesOn.countDown()
      // as by somebody who waits for memory, too
      live.synchronized(assert(!result(makeRoom(patienceMs = 1))))
      assert(result(makeRoom()))
    }
  }
}
