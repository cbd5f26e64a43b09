package org.apache.spark.sql.lamina

/**
 * What the shim needs to know about attempt ids (docs/spec/attempt-ids.md). Rows are told apart by the attempt that
 * wrote them; the empty store has no writer.
 */
object Attempts {

  /** Content of the empty version 0. */
  val Empty = ""

  /** The content that an attempt id names. */
  def content(attempt: Option[String]): String = attempt.filterNot(isEmptyStore).getOrElse(Empty)

  /** Kind `e`: nothing was ever written. The engine checks ids; one that it would refuse is passed on to it. */
  private def isEmptyStore(attempt: String): Boolean = {
    val fields = attempt.split('.')
    fields.length == 6 && fields(3) == "e"
  }
}
