package org.apache.spark.sql.lamina.wire

import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * What the engine process of this JVM is started with. The first store that opens fixes it for the life of the JVM.
 *
 * @param python interpreter that runs the engine
 * @param pythonPath entries put before an inherited PYTHONPATH; the shim's jar comes first
 * @param startTimeoutMs how long the engine may take to answer the handshake
 * @param requestTimeoutMs deadline of each request, control and data
 * @param connections most data connections open at once
 * @param tempDir where the private directory of the engine is made
 * @param raw process settings as the user gave them, by full key: handed to the engine, and compared with those of
 *   later opens
 */
final case class ProcessSettings(
    python: String,
    pythonPath: Seq[String],
    startTimeoutMs: Long,
    requestTimeoutMs: Long,
    connections: Int,
    tempDir: String,
    raw: Map[String, String]
)

object ProcessSettings {

  /**
   * The error of a setting of the whole JVM that is another one now.
   *
   * @param since when `before` was fixed
   */
  private[lamina] def conflict(key: String, before: Option[String], since: String, now: String): LaminaError =
    new LaminaError(
      LaminaError.SettingsConflict,
      s"$key was ${before.fold("not set")(text => s"'$text'")} when $since and is '$now' now; it holds for all " +
        "queries of a JVM, so set the same everywhere or restart the application"
    )
}
