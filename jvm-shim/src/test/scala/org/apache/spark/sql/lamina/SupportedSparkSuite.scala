package org.apache.spark.sql.lamina

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.lamina.errors.LaminaError

/** What a jar says that meets another Spark than it was built for. */
class SupportedSparkSuite extends AnyFunSuite {
  private val other = SupportedSpark.Minors.filterNot(_ == Compat.sparkMinor).head

  private def refusal(body: => Any): String = {
    val error = intercept[LaminaError](body)
    assert(error.kind == LaminaError.VersionSpark)
    error.getMessage
  }

  test("every patch of the minor that it was built for is accepted") {
    assert(SupportedSpark.Minors.contains(Compat.sparkMinor))
    assert(SPARK_VERSION.startsWith(s"${Compat.sparkMinor}."))
    Seq(SPARK_VERSION, s"${Compat.sparkMinor}.17", s"${Compat.sparkMinor}.0-SNAPSHOT").foreach(SupportedSpark.require)
  }

  test("a minor that there is another jar for gets that jar's name, and only that") {
    val said = refusal(SupportedSpark.require(s"$other.1"))
    assert(said.contains(s"this jar is lamina-spark-${Compat.sparkMinor}_2.13 and Spark is $other.1"))
    assert(said.endsWith(s"use lamina-spark-${other}_2.13"))
  }

  test("a minor that there is no jar for gets the names of those that there are") {
    Seq("4.1.2", "4.20.0", "5.0.0").foreach { version =>
      val said = refusal(SupportedSpark.require(version))
      val named = "lamina-spark-([0-9.]+)_2.13".r.findAllMatchIn(said.split(';')(1)).map(_.group(1)).toSeq
      assert(named == SupportedSpark.Minors)
    }
  }

  test("the extension says it before it touches anything of Spark") {
    assert(refusal(new LaminaExtensions(s"$other.1").apply(null)).contains(s"use lamina-spark-${other}_2.13"))
    new LaminaExtensions().apply(new SparkSessionExtensions)
  }
}
