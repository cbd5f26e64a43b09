package org.apache.spark.sql.lamina

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.SparkConf
import org.apache.spark.sql.lamina.errors.LaminaError

/** How much memory the tables of an executor may take. */
class HeapCapSuite extends AnyFunSuite {
  private val gib = 1L << 30
  private val bare = new SparkConf(loadDefaults = false)
  private val container = Machine(limit = 8 * gib, container = true, jvmHeap = 4 * gib)

  test("auto takes a part of what the Java heap leaves") {
    val cap = HeapCap.resolve(None, bare, container)
    assert(cap > 2 * gib && cap < 4 * gib)
    assert(HeapCap.resolve(Some("auto"), bare, container) == cap)
  }

  test("auto takes no more than the overhead that the executor asked for") {
    val conf = bare.clone().set("spark.executor.memoryOverhead", "2g")
    assert(HeapCap.resolve(None, conf, container) < 2 * gib)
  }

  test("an overhead without a unit is in MiB, as in Spark") {
    val conf = bare.clone().set("spark.executor.memoryOverhead", "2048")
    val withUnit = bare.clone().set("spark.executor.memoryOverhead", "2g")
    assert(HeapCap.resolve(None, conf, container) == HeapCap.resolve(None, withUnit, container))
  }

  test("a heap that leaves nothing is refused with what to do") {
    val error = intercept[LaminaError](HeapCap.resolve(None, bare, container.copy(jvmHeap = 8 * gib)))
    assert(error.kind == LaminaError.MemoryCap)
    Seq("spark.executor.memory", "spark.executor.memoryOverhead", "heap.maxBytes").foreach(words =>
      assert(error.getMessage.contains(words))
    )
  }

  test("a set cap counts, with a unit or in bytes") {
    assert(HeapCap.resolve(Some("3g"), bare, container) == 3 * gib)
    assert(HeapCap.resolve(Some((3 * gib).toString), bare, container) == 3 * gib)
  }

  test("a set cap that does not fit beside the heap in the container is refused") {
    val error = intercept[LaminaError](HeapCap.resolve(Some("5g"), bare, container))
    assert(error.kind == LaminaError.MemoryCap)
    assert(HeapCap.resolve(Some("5g"), bare, container.copy(container = false)) == 5 * gib)
  }

  test("a cap that is no size is refused by name") {
    val error = intercept[LaminaError](HeapCap.resolve(Some("much"), bare, container))
    assert(error.kind == LaminaError.SettingsInvalid)
    assert(error.getMessage.contains("heap.maxBytes"))
  }
}
