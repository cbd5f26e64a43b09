package org.apache.spark.sql.lamina.wire

import org.json4s.JsonDSL._
import org.scalatest.concurrent.Eventually.{eventually, timeout}

import org.apache.spark.sql.lamina.{DurableCommit, LiveTable, Open, Position}
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.PagePool

/** Who waits for a commit, and what becomes of the table. */
class DurableCommitSuite extends EngineFixture {
  private val one = Seq(Entry(0, 1, Array[Byte](1), Array[Byte](2)))

  private def sent(engine: Engine, peer: String): (LiveTable, DurableCommit, PendingCommit) = {
    val pool = new PagePool(64L << 20)
    val live = new LiveTable(pool)
    val pending = engine.commit(header ~ ("peer" -> peer), Seq("increment" -> Entry.fill(one) _))
    val commit = new DurableCommit(live, pending, (_, _) => ())
    live.synchronized {
      live.begin(new Open(null, writes = true))
      live.advance(Position.Start.copy(version = 1, content = pending.attempt))
      live.pending = commit
    }
    (live, commit, pending)
  }

  private def content(live: LiveTable): (Boolean, String) = live.synchronized((live.pending == null, live.at.content))

  test("a commit that is durable keeps the table where it is") {
    val (live, commit, _) = sent(Engine.get(peer.settings()), "")
    assert(commit.settle() == null)
    assert(content(live) == ((true, "a-accepted")))
  }

  test("how long a commit took does not depend on when somebody asks") {
    val (_, commit, pending) = sent(Engine.get(peer.settings()), "")
    pending.await()
    val took = pending.tookNanos
    val asked = System.nanoTime()
    while (System.nanoTime() - asked < 1000000L) Thread.onSpinWait()
    assert(pending.tookNanos == took)
    assert(commit.settle() == null)
  }

  test("a commit that failed takes the table back, for everybody who asks") {
    val (live, commit, _) = sent(Engine.get(peer.settings()), "fail")
    for (_ <- 1 to 2) assert(commit.settle().asInstanceOf[LaminaError].kind == LaminaError.StorageDenied)
    assert(content(live) == ((true, Position.Start.content)))
  }

  test("an interrupted thread decides nothing; the table learns the outcome when there is one") {
    val (live, commit, pending) = sent(Engine.get(peer.settings()), "wait")
    var outcome: Throwable = null
    val waiter = new Thread(() =>
      try outcome = commit.settle()
      catch { case error: Throwable => outcome = error }
    )
    waiter.start()
    waiter.interrupt()
    waiter.join(Patience.toMillis)
    assert(outcome.isInstanceOf[InterruptedException])
    assert(content(live) == ((false, "a-accepted")))
    pending.cancel()
    eventually(timeout(Patience))(assert(content(live) == ((true, Position.Start.content))))
  }
}
