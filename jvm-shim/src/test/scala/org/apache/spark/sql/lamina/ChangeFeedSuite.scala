package org.apache.spark.sql.lamina

import java.util.concurrent.{ConcurrentLinkedQueue, TimeUnit}

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection
import org.apache.spark.sql.lamina.wire.DaemonThreads
import org.apache.spark.sql.types.{BinaryType, StructType}

/** Readers of the change feed that stop before its end, as `show()` and `limit` do. */
class ChangeFeedSuite extends ProviderFixture {

  /** Rows of a chunk, and chunks that the reader's queue holds. */
  private val (chunk, queued) = (1024, 4)

  private def feedThreads: Seq[Thread] =
    Thread.getAllStackTraces.keySet.asScala.toSeq.filter(_.getName.startsWith("lamina-change-feed-"))

  /** Waits until a thread can do no more until the reader takes something, or has ended. */
  private def awaitStill(thread: Thread): Unit = {
    val deadline = System.nanoTime() + TimeUnit.MINUTES.toNanos(5)
    def isStill = !thread.isAlive || thread.getStackTrace.exists(_.getMethodName == "offer") &&
      thread.getState == Thread.State.TIMED_WAITING
    while (!isStill) {
      assert(System.nanoTime() < deadline, "the feed goes on and on")
      Thread.onSpinWait()
    }
  }

  /** What left threads while `body` ran: Spark's handler on executors ends the JVM for it. */
  private def uncaught(body: => Unit): Seq[Throwable] = {
    val seen = new ConcurrentLinkedQueue[Throwable]
    val before = Thread.getDefaultUncaughtExceptionHandler
    Thread.setDefaultUncaughtExceptionHandler((_, error) => { seen.add(error); () })
    try body
    finally Thread.setDefaultUncaughtExceptionHandler(before)
    seen.asScala.toSeq
  }

  test("a reader that stops early leaves no exception behind, however many chunks are still to come") {
    val id = newId()
    val provider = provide(id)
    val failures = DaemonThreads.failures
    // the reader takes the families and the first chunk: with the lengths around five chunks the queue is full at the end
    val around = for (chunks <- 1 to queued + 3; off <- -1 to 1) yield chunks * chunk + off
    var base = Option.empty[String]
    val errors = uncaught {
      for ((rows, version) <- around.zipWithIndex) {
        base =
          commit(provider, version, base)(put(_, (0 until rows).map(at => at.toLong -> (version * 100000 + at)): _*))
        val feed = provider.getStateStoreChangeDataReader(version + 1, version + 1, None, base)
        val receivers = feedThreads
        assert(feed.next() != null)
        receivers.foreach(awaitStill)
        feed.closeIfNeeded()
        receivers.foreach(_.join(TimeUnit.MINUTES.toMillis(5)))
        assert(!receivers.exists(_.isAlive))
      }
    }
    provider.close()
    assert(errors == Nil)
    assert(DaemonThreads.failures == failures)
  }

  test("a feed of large values is received no further than a few MiB ahead of its reader") {
    val schema = new StructType().add("value", BinaryType)
    val large = UnsafeProjection.create(schema)(InternalRow(new Array[Byte](256 << 10)))
    val provider = init(new StreamingProvider, newId(), valueSchema = schema)
    // 16 MiB, in fewer rows than a chunk may have
    val keys = 1L to 64L
    val base = commit(provider, 0, None)(store => keys.foreach(at => store.put(key(at), large, family)))
    val feed = provider.getStateStoreChangeDataReader(1, 1, None, base)
    val receivers = feedThreads
    val first = feed.next()
    receivers.foreach(awaitStill)
    assert(receivers.nonEmpty && receivers.forall(_.isAlive), "all of it was received")
    assert((first +: feed.toSeq).map(_._2.getLong(0)).sorted == keys)
    provider.close()
  }

  test("no exception leaves a thread of the shim: it is counted") {
    val failures = DaemonThreads.failures
    val errors = uncaught {
      DaemonThreads.start("lamina-test-fails")(throw new IllegalStateException("expected by a test")).join()
      val factory = DaemonThreads("lamina-test-fails-too")
      val thread = factory.newThread(() => throw new AssertionError("expected by a test"))
      thread.start()
      thread.join()
    }
    assert(errors == Nil)
    assert(DaemonThreads.failures == failures + 2)
  }
}
