package org.apache.spark.sql.lamina.wire

import scala.concurrent.duration._

import org.json4s.JValue
import org.json4s.JsonDSL._
import org.scalatest.{BeforeAndAfterAll, BeforeAndAfterEach}
import org.scalatest.concurrent.Eventually.{eventually, timeout}
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.EntrySink
import org.apache.spark.unsafe.Platform

/** An entry on the heap. */
private[wire] final case class Entry(family: Int, op: Byte, key: Seq[Byte], value: Seq[Byte], version: Long = -1) {
  override def toString: String = s"Entry($version, $family, $op, ${key.size} bytes, ${value.size} bytes)"
}

private[wire] object Entry {
  def apply(family: Int, op: Int, key: Array[Byte], value: Array[Byte]): Entry =
    Entry(family, op.toByte, key.toIndexedSeq, value.toIndexedSeq)

  def bytes(address: Long, length: Int): Seq[Byte] = {
    val copied = new Array[Byte](length)
    Platform.copyMemory(null, address, copied, Platform.BYTE_ARRAY_OFFSET.toLong, length.toLong)
    copied.toIndexedSeq
  }

  /** Puts entries into a sink, from arrays on the heap. */
  def fill(entries: Iterable[Entry])(sink: EntrySink): Unit = entries.foreach { entry =>
    val base = Platform.BYTE_ARRAY_OFFSET.toLong
    val (key, value) = (entry.key.toArray, entry.value.toArray)
    sink.entry(entry.family, entry.op, key, base, key.length, value, base, value.length)
  }
}

/** Suites that run an engine process: each test has its own, and must leave nothing behind. */
private[wire] abstract class EngineFixture extends AnyFunSuite with BeforeAndAfterEach with BeforeAndAfterAll {
  protected val peer = new PeerEngine

  /** How long a test waits for what must happen before it calls it hung: no measure of how long it takes. */
  protected val Patience: FiniteDuration = 60.seconds
  protected lazy val header = ("handle" -> 1) ~ ("attempt" -> "a")

  override protected def afterEach(): Unit = {
    Engine.shutdown()
    // the directory of an engine that was killed goes a moment after its processes
    eventually(timeout(Patience))(assert(peer.leftBehind.isEmpty))
    assert(engineThreads.isEmpty)
    super.afterEach()
  }

  override protected def afterAll(): Unit = {
    peer.delete()
    super.afterAll()
  }

  /** Threads of engines, after a moment for those that are about to end. */
  protected def engineThreads: Seq[String] = {
    liveEngineThreads.foreach(_.join(Patience.toMillis))
    liveEngineThreads.map(_.getName)
  }

  /** Threads of engines as they are now. */
  protected def liveEngineThreads: Seq[Thread] = {
    val threads = new Array[Thread](Thread.activeCount() * 2 + 16)
    val root = Iterator.iterate(Thread.currentThread.getThreadGroup)(_.getParent).takeWhile(_ != null).toList.last
    threads.take(root.enumerate(threads)).filter(_.getName.startsWith("lamina-engine")).toSeq
  }

  protected def commit(engine: Engine, entries: Seq[Entry], peer: String = ""): JValue =
    engine.commit(header ~ ("peer" -> peer), Seq("increment" -> Entry.fill(entries) _)).await()

  protected def loaded(engine: Engine, peer: String = ""): Seq[Entry] = {
    val entries = Seq.newBuilder[Entry]
    engine.load(header ~ ("op" -> "load") ~ ("peer" -> peer))(_ => ()) {
      (family, op, keyBase, key, keyLength, valueBase, value, valueLength) =>
        assert(keyBase == null && valueBase == null)
        entries += Entry(family, op, Entry.bytes(key, keyLength), Entry.bytes(value, valueLength))
    }
    entries.result()
  }

  protected def kindOf(body: => Any): String = intercept[LaminaError](body).kind

  /** The kinds of an error and of its causes. */
  protected def kindsOf(error: Throwable): Set[String] =
    Iterator.iterate(error)(_.getCause).takeWhile(_ != null).collect { case ours: LaminaError => ours.kind }.toSet
}
