package org.apache.spark.sql.lamina

import org.scalatest.funsuite.AnyFunSuite

/** An exclusion is of one suite and one test. */
class ExclusionsSuite extends AnyFunSuite {
  private val (suite, name) = (
    classOf[LaminaStreamingDeduplicationV2Suite],
    "SPARK-39650: recovery from checkpoint " +
      "having all columns as value schema with sparkVersion=3.3.0"
  )

  test("a test is excluded by its whole name, in whatever mode") {
    assert(Exclusions.has(suite, name))
    assert(Exclusions.has(suite, s"$name (with changelog checkpointing) (encoding = avro)"))
    assert(Exclusions.has(suite, s"$name - state format version 2"))
    assert(!Exclusions.has(suite, name.dropRight(1)))
    assert(!Exclusions.has(suite, s"$name (SPARK-1)"))
    assert(!Exclusions.has(suite, s"$name and more"))
  }

  test("a test is excluded in the suites that are named, and in no other") {
    assert(!Exclusions.has(classOf[LaminaStreamingDeduplicationSuite], name))
  }

  test("an exclusion that no test of its suite has for a name is told") {
    val excluded = Exclusions.of(suite)
    assert(excluded.contains(name))
    assert(Exclusions.unmatched(suite, excluded.map(_ + " (with a mode)")).isEmpty)
    assert(Exclusions.unmatched(suite, excluded - name + s"$name and more") == Set(name))
  }
}
