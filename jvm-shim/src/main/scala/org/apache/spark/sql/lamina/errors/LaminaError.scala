package org.apache.spark.sql.lamina.errors

import org.apache.spark.{QueryContext, SparkRuntimeException}

/**
 * The one error of lamina in the JVM.
 *
 * An error of Spark's own by type, since Spark hands those of a task to the program as they are; any other becomes the
 * text of a "Job aborted" with stack traces. In PySpark that text is also what a query with `foreachBatch` is searched
 * for as it stops, by a regular expression that recurses for each character: beyond 1,200 of them the stream's thread
 * ends by a `StackOverflowError`. Spark's own stack traces alone are longer, so being short would not help.
 *
 * @param kind stable name of what went wrong, one of [[LaminaError.kinds]]; the same as in Python's `lamina.errors`
 * @param text what happened, to which file, version and store, and what to do about it; not an interface
 */
final class LaminaError(val kind: String, val text: String, cause: Throwable = null)
    extends SparkRuntimeException(
      LaminaError.Condition,
      Map("errorMessage" -> s"[$kind] $text"),
      cause,
      Array.empty[QueryContext],
      ""
    ) {

  /** Without the SQL state that Spark appends. */
  override def getMessage: String = s"[$kind] $text"
}

object LaminaError {

  /** The one of Spark's error conditions whose whole text is a parameter. */
  private val Condition = "_LEGACY_ERROR_USER_RAISED_EXCEPTION"

  val SettingsUnknown = "settings.unknown"
  val SettingsInvalid = "settings.invalid"
  val SettingsConflict = "settings.conflict"
  val VersionSpark = "version.spark"
  val VersionEngine = "version.engine"
  val EngineStart = "engine.start"
  val EngineDependency = "engine.dependency"
  val EngineLost = "engine.lost"
  val EngineProtocol = "engine.protocol"
  val EngineDeadline = "engine.deadline"
  val EngineCancelled = "engine.cancelled"
  val StorageScheme = "storage.scheme"
  val StorageDenied = "storage.denied"
  val StorageFailed = "storage.failed"
  val FileMissing = "file.missing"
  val FileDamaged = "file.damaged"
  val FileVersion = "file.version"
  val FileIdentity = "file.identity"
  val AttemptIdUnknown = "attempt-id.unknown"
  val StateNotRetained = "state.not-retained"
  val StateSuperseded = "state.superseded"
  val StateBase = "state.base"
  val MemoryCap = "memory.cap"
  val StoreClosed = "store.closed"
  val StoreStamp = "store.stamp"
  val StoreState = "store.state"
  val StoreUnsupported = "store.unsupported"
  val RowTooLarge = "row.too-large"
  val Internal = "internal"

  /** Every kind, in the order in which they were added. Append only. */
  val kinds: Seq[String] = Seq(
    SettingsUnknown,
    SettingsInvalid,
    SettingsConflict,
    VersionSpark,
    VersionEngine,
    EngineStart,
    EngineDependency,
    EngineLost,
    EngineProtocol,
    EngineDeadline,
    EngineCancelled,
    StorageScheme,
    StorageDenied,
    StorageFailed,
    FileMissing,
    FileDamaged,
    FileVersion,
    FileIdentity,
    AttemptIdUnknown,
    StateNotRetained,
    StateSuperseded,
    StateBase,
    MemoryCap,
    StoreClosed,
    StoreStamp,
    StoreState,
    StoreUnsupported,
    RowTooLarge,
    Internal
  )

  private val known = kinds.toSet

  /** Kind and text of why something was not written: an error that is not lamina's counts as the storage's. */
  def kindAndText(error: Throwable): (String, String) = error match {
    case ours: LaminaError => (ours.kind, ours.text)
    case other => (StorageFailed, String.valueOf(other.getMessage))
  }

  /** An error that came over the wire; a kind that this shim does not know (of a newer engine) becomes `internal`. */
  def fromKind(kind: String, message: String): LaminaError =
    if (known(kind)) new LaminaError(kind, message) else new LaminaError(Internal, s"$kind: $message")
}
