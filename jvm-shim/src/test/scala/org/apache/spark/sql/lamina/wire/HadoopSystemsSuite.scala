package org.apache.spark.sql.lamina.wire

import java.net.URI
import java.util.UUID
import java.util.concurrent.{ConcurrentHashMap, CountDownLatch, Executors, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import scala.util.Try

import org.scalatest.funsuite.AnyFunSuite

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{Path, RawLocalFileSystem}

/** Which Hadoop file systems are kept, and for how long. */
class HadoopSystemsSuite extends AnyFunSuite {
  import HadoopSystemsSuite._

  private val root = new Path("counted://host/checkpoint")

  private def keys(name: String): Map[String, String] =
    Map("fs.counted.impl" -> classOf[CountedFileSystem].getName, "fs.counted.name" -> name)

  private def names(count: Int): Seq[String] = Seq.fill(count)(UUID.randomUUID.toString)

  private def aside[T](work: => T)(meanwhile: java.util.concurrent.Future[T] => Unit): Unit = {
    val thread = Executors.newSingleThreadExecutor(DaemonThreads("aside"))
    try meanwhile(thread.submit(() => work))
    finally {
      thread.shutdownNow()
      ()
    }
  }

  test("the latest are kept, and one that is used is closed when nobody uses it any more") {
    val systems = new HadoopSystems
    val all = names(HadoopSystems.MostKept + 2)
    val first = systems.use(root, keys(all.head))
    all.tail.foreach(name => systems.use(root, keys(name)).release())
    assert(all.filter(closed.containsKey) == Seq(all(1)))
    // it is not among the latest, so this is another one
    val again = systems.use(root, keys(all.head))
    assert(again.system ne first.system)
    first.release()
    assert(closed.get(all.head) == 1)
    again.release()
    assert(closed.get(all.head) == 1)
    systems.close()
    assert(all.forall(closed.containsKey) && closed.get(all.head) == 2)
  }

  test("those who want the same one share it, and one that was used is younger than one that was not") {
    val systems = new HadoopSystems
    val all = names(HadoopSystems.MostKept + 1)
    val some = all.init.map(name => systems.use(root, keys(name)))
    val again = systems.use(root, keys(all.head))
    assert(again.system eq some.head.system)
    (again +: some).foreach(_.release())
    systems.use(root, keys(all.last)).release()
    assert(all.filter(closed.containsKey) == Seq(all(1)))
    systems.close()
  }

  test("one that takes long to open keeps nobody waiting who wants another one") {
    val systems = new HadoopSystems
    val Seq(slow, other) = names(2): @unchecked
    val goOn = new CountDownLatch(1)
    opening.put(slow, () => assert(goOn.await(60, TimeUnit.SECONDS)))
    aside(systems.use(root, keys(slow))) { one =>
      while (!begun.containsKey(slow)) Thread.sleep(1)
      aside(systems.use(root, keys(slow))) { two =>
        // its keys may lie beside the slow one's in any map
        names(64).foreach(name => aside(systems.use(root, keys(name)))(_.get(60, TimeUnit.SECONDS).release()))
        aside(systems.use(root, keys(other)))(_.get(60, TimeUnit.SECONDS).release())
        assert(!one.isDone && !two.isDone)
        goOn.countDown()
        assert(one.get(60, TimeUnit.SECONDS) != null && two.get(60, TimeUnit.SECONDS) != null)
      }
    }
    systems.close()
  }

  test("one that could not be opened is tried again by the next one who wants it") {
    val systems = new HadoopSystems
    val name = names(1).head
    val tries = new AtomicInteger
    opening.put(name, () => if (tries.incrementAndGet() == 1) throw new java.io.IOException("not yet"))
    assert(Try(systems.use(root, keys(name))).failed.get.getMessage == "not yet")
    systems.use(root, keys(name)).release()
    assert(tries.get == 2)
    systems.close()
  }

  test("a rename waits for another one to the same path, and for no other") {
    val target = new Path("/checkpoint/state/0")
    // whatever the number of locks was
    val others = (1 to 4096).map(number => new Path(s"/checkpoint/state/$number"))
    val inside = new CountDownLatch(1)
    HadoopConnection.Renaming.alone(target) {
      aside(HadoopConnection.Renaming.alone(target)(inside.countDown())) { same =>
        aside(others.foreach(other => HadoopConnection.Renaming.alone(other)(())))(_.get(60, TimeUnit.SECONDS))
        assert(!same.isDone && inside.getCount == 1)
      }
    }
    assert(inside.await(60, TimeUnit.SECONDS))
  }
}

private object HadoopSystemsSuite {

  /** By the name of a file system: what it does while it is opened, who has begun, and how often it was closed. */
  val opening = new ConcurrentHashMap[String, () => Unit]
  val begun = new ConcurrentHashMap[String, Integer]
  val closed = new ConcurrentHashMap[String, Integer]
}

class CountedFileSystem extends RawLocalFileSystem {
  private var name = ""

  override def initialize(uri: URI, conf: Configuration): Unit = {
    name = conf.get("fs.counted.name")
    HadoopSystemsSuite.begun.merge(name, 1, Integer.sum(_, _))
    Option(HadoopSystemsSuite.opening.get(name)).foreach(_())
    super.initialize(uri, conf)
  }

  override def close(): Unit = {
    HadoopSystemsSuite.closed.merge(name, 1, Integer.sum(_, _))
    super.close()
  }
}
