package org.apache.spark.sql.lamina

import org.apache.spark.sql.lamina.errors.LaminaError

/** Which Spark there is a jar for, and which one this jar is for. */
private[lamina] object SupportedSpark {

  /** The minors that `build.sbt` builds a jar for, oldest first. */
  val Minors: Seq[String] = Seq("4.2", "4.3")

  /**
   * Fails where this jar meets another minor of Spark than it was built for. Uses no class of Spark, since any may be
   * another one there.
   *
   * @param version of the Spark that runs, such as 4.3.0
   * @throws LaminaError `version.spark`
   */
  def require(version: String): Unit = {
    val minor = version.split('.').take(2).mkString(".")
    if (minor != Compat.sparkMinor) {
      val advice =
        if (Minors.contains(minor)) s"use ${jar(minor)}"
        else s"there is none for it: use ${Minors.map(other => s"Spark $other with ${jar(other)}").mkString(" or ")}"
      throw new LaminaError(
        LaminaError.VersionSpark,
        s"this jar is ${jar(Compat.sparkMinor)} and Spark is $version; $advice"
      )
    }
  }

  private def jar(minor: String): String = s"lamina-spark-${minor}_2.13"
}
