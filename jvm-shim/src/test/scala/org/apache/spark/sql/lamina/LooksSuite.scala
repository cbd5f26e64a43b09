package org.apache.spark.sql.lamina

import java.util.concurrent.{Executors, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import org.scalatest.BeforeAndAfterAll
import org.scalatest.concurrent.Eventually._
import org.scalatest.funsuite.AnyFunSuite
import org.scalatest.time.SpanSugar._

import org.apache.spark.sql.lamina.wire.DaemonThreads

class LooksSuite extends AnyFunSuite with BeforeAndAfterAll {
  private val threads = Executors.newCachedThreadPool(DaemonThreads("looks-test"))

  override protected def afterAll(): Unit = threads.shutdownNow()

  private class Storage {
    val asked = new AtomicInteger
    @volatile var (isThere, isSaid) = (false, false)
    @volatile var ms = 0L
    val looks = new Looks(
      threads,
      _ => {
        asked.incrementAndGet()
        isThere
      },
      _ => isSaid,
      () => TimeUnit.MILLISECONDS.toNanos(ms)
    )

    /** What a look has found that was due; None where none was. */
    def look(): Option[Boolean] = {
      val before = asked.get
      assert(looks.found("one").isEmpty)
      eventually(timeout(60.seconds))(assert(!looks.isGoing("one")))
      if (asked.get == before) None else looks.found("one")
    }

    /** Looks for two seconds. */
    def lookInVain(): Unit = while (ms < 2000) {
      look()
      ms += 50
    }
  }

  test("looks in vain become seldom") {
    val storage = new Storage
    for (_ <- 0 until 10000) {
      storage.look()
      storage.ms += 1
    }
    assert(storage.asked.get == 23)
    storage.isThere = true
    storage.ms += 500
    assert(storage.look().contains(true))
  }

  test("what is said to be there is looked for at once, and counts when it is seen") {
    val storage = new Storage
    storage.lookInVain()
    storage.isSaid = true
    assert(storage.look().contains(false))
    assert(storage.look().isEmpty)
    storage.ms += 10
    storage.isThere = true
    assert(storage.look().contains(true))
  }

  test("after a failure it is looked for at once, and not there when some time has passed") {
    val storage = new Storage
    def after(): Option[Boolean] = {
      storage.looks.afterFailure("one", 5000)
      eventually(timeout(60.seconds))(assert(!storage.looks.isGoing("one")))
      storage.looks.afterFailure("one", 5000)
    }
    storage.lookInVain()
    val before = storage.asked.get
    assert(after().isEmpty)
    assert(storage.asked.get == before + 1)
    storage.ms += 4999
    assert(after().isEmpty)
    storage.ms += 500
    assert(after().contains(false))
  }
}
