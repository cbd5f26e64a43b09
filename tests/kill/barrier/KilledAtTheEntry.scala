package org.apache.spark.sql.lamina.kill

import java.nio.file.{Files, NoSuchFileException, Paths}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{DefaultFormats, Formats}
import org.json4s.jackson.JsonMethods

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager

/**
 * What Spark takes by itself, with points of the campaign around entries of the commit log. The barrier comes to it when all that an
 * entry names is durable.
 */
final class KilledAtTheEntry(path: Path, conf: Configuration) extends FileContextBasedCheckpointFileManager(path, conf) {
  override def createAtomic(file: Path, overwriteIfPossible: Boolean): CancellableFSDataOutputStream = {
    val entry = super.createAtomic(file, overwriteIfPossible)
    if (file.getParent.getName != "commits") entry
    else new CancellableFSDataOutputStream(entry) {
      override def cancel(): Unit = entry.cancel()

      override def close(): Unit = {
        Orders.reach("durable, no entry")
        entry.close()
        Orders.reach("entry written")
      }
    }
  }
}

/** Orders of the campaign to kill, as the hook of the engine takes them. */
private object Orders {
  private implicit val formats: Formats = DefaultFormats
  private val directory = Paths.get(System.getenv("LAMINA_KILL_ORDERS"))

  def reach(point: String): Unit = taken(point).foreach { process =>
    // a JVM can end itself only by what it could still do before
    new ProcessBuilder("kill", "-9", process.toString).start().waitFor()
  }

  /** The process that is to be killed at a point, if there is an order for that, which nobody else takes from then on. */
  private def taken(point: String): Option[Long] =
    try {
      val current = directory.resolve("current.json")
      val order = JsonMethods.parse(Files.readString(current))
      val victim = if ((order \ "victim").extract[String] == "driver") order \ "driver" else order \ "process"
      val process = victim.extractOpt[Long]
      // whoever is gone meanwhile is not killed, and not counted
      if ((order \ "point").extract[String] != point || !process.exists(ProcessHandle.of(_).isPresent)) None
      else {
        Files.move(current, directory.resolve(s"taken-${(order \ "id").extract[Long]}.json"))
        process
      }
    } catch { case _: NoSuchFileException => None }
}
