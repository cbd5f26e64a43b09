package org.apache.spark.sql.lamina.errors

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.{SparkConf, SparkContext}

class LaminaErrorSuite extends AnyFunSuite {
  test("an error that fails a task reaches the program as it is, with nothing added to its text") {
    val conf = new SparkConf().setMaster("local[1,2]").setAppName("errors").set("spark.ui.enabled", "false")
    val context = new SparkContext(conf.set("spark.driver.host", "127.0.0.1"))
    try {
      val error = intercept[LaminaError] {
        context.parallelize(Seq(1), 1).foreach { _ =>
          throw new LaminaError(LaminaError.FileDamaged, "<1.lam> is damaged: $1", new RuntimeException("why"))
        }
      }
      assert(error.kind == LaminaError.FileDamaged)
      assert(error.getMessage == "[file.damaged] <1.lam> is damaged: $1")
      assert(error.getCause.getMessage == "why")
    } finally context.stop()
  }
}
