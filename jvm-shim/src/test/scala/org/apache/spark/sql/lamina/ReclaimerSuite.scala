package org.apache.spark.sql.lamina

import java.util.concurrent.{CompletableFuture, CountDownLatch, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table._
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/** How long it is waited for tables that are asked for memory. */
class ReclaimerSuite extends AnyFunSuite {
  private val offset = Platform.BYTE_ARRAY_OFFSET.toLong
  private val schema = new StructType().add("key", "string")
  private val families = ColumnFamilies.Empty.add(id =>
    ColumnFamily(
      id,
      "default",
      internal = false,
      schema,
      schema,
      NoPrefixKeyStateEncoderSpec(schema),
      "unsaferow",
      multiValue = false,
      rowChecksum = false
    )
  )

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

    def makeRoom(patienceMs: Long): CompletableFuture[Boolean] =
      CompletableFuture.supplyAsync(() => Reclaimer.makeRoom(registry, pool, patienceMs = patienceMs))

    override def close(): Unit = tables.foreach(table => table.synchronized(table.table.close()))
  }

  private def result(future: CompletableFuture[Boolean]): Boolean = future.get(60, TimeUnit.SECONDS)

  test("rows on their way to the disk are waited for, however long that takes") {
    val fixture = new Fixture
    import fixture._
    try {
      val waiting = makeRoom(patienceMs = 1)
      assert(begun.await(60, TimeUnit.SECONDS))
      // much more than the patience
      Thread.sleep(200)
      assert(!waiting.isDone)
      goesOn.countDown()
      assert(result(waiting))
      assert(live.table.memory.total < 500000)
    } finally fixture.close()
  }

  test("who asks meanwhile waits for the same") {
    val fixture = new Fixture
    import fixture._
    try {
      val first = makeRoom(patienceMs = 60000)
      assert(begun.await(60, TimeUnit.SECONDS))
      val others = Seq.fill(4)(makeRoom(patienceMs = 60000))
      Thread.sleep(100)
      assert((first +: others).forall(!_.isDone))
      goesOn.countDown()
      assert((first +: others).forall(result))
      assert(asked.get == 1)
    } finally fixture.close()
  }

  test("who joins others hears of tables that have come to rest since") {
    val fixture = new Fixture
    import fixture._
    try {
      val first = makeRoom(patienceMs = 60000)
      assert(begun.await(60, TimeUnit.SECONDS))
      val later = newTable(() => SpillDatabase.open())
      val joined = makeRoom(patienceMs = 60000)
      Thread.sleep(100)
      isDiskFull = true
      goesOn.countDown()
      assert(!result(first))
      assert(result(joined))
      assert(later.table.memory.total < 500000)
    } finally fixture.close()
  }

  test("a table whose lock another one has is not waited for") {
    val fixture = new Fixture
    import fixture._
    goesOn.countDown()
    try {
      // as by somebody who waits for memory, too
      live.synchronized(assert(!result(makeRoom(patienceMs = 1))))
      assert(result(makeRoom(patienceMs = 60000)))
    } finally fixture.close()
  }
}
