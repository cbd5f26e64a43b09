package org.apache.spark.sql.lamina

import scala.collection.mutable.ArrayBuffer

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError

class BarrierNewsSuite extends AnyFunSuite {

  private class Heard {
    val told = ArrayBuffer.empty[(String, String)]
    val writers = new Writers((log, failure) => { told += log -> failure.get.getMessage; () })
  }

  test("objects go with the executor that was to write them, and no others") {
    val heard = new Heard
    heard.writers.begun("one", "1")
    heard.writers.begun("other", "2")
    heard.writers.begun("another", "1")
    assert(heard.told.isEmpty)
    heard.writers.lost("1", "Container killed")
    assert(heard.told.map(_._1).toSet == Set("one", "another"))
    val message = heard.told.head._2
    assert(message == "[engine.lost] executor 1, which was to write it, was lost: Container killed")
  }

  test("an executor that is heard of after its loss is lost") {
    val heard = new Heard
    heard.writers.lost("1", "no heartbeat")
    heard.writers.begun("one", "1")
    heard.writers.begun("other", "2")
    assert(heard.told.map(_._1) == Seq("one"))
  }

  test("what has failed is told as it is said") {
    val heard = new Heard
    heard.writers.failed("one", new LaminaError(LaminaError.StorageFailed, "executor 2: the disk is full"))
    assert(heard.told == Seq("one" -> "[storage.failed] executor 2: the disk is full"))
  }

  test("what came first is forgotten first") {
    val recent = new Recent[Int, String]
    assert(recent.put(0, "a").isEmpty)
    assert(recent.put(0, "b").contains("a"))
    for (key <- 1 to Recent.Kept) recent.put(key, if (key > Recent.Kept - 2) "last" else "early")
    assert(recent.get(0).isEmpty)
    assert(recent.get(1).contains("early"))
    assert(recent.keysOf("last") == Seq(Recent.Kept - 1, Recent.Kept))
  }
}
