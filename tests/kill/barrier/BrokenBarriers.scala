package org.apache.spark.sql.lamina.kill

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager

/** Takes every log object for durable, so that entries of Spark's commit log are written before it is. */
final class EntryBeforeDurable(path: Path, conf: Configuration)
    extends FileSystemBasedCheckpointFileManager(path, conf) {
  override def exists(file: Path): Boolean = file.getName.endsWith(".log") || super.exists(file)
}

/** Takes a log object for durable where any other one is. */
final class WrongObject(path: Path, conf: Configuration) extends FileSystemBasedCheckpointFileManager(path, conf) {
  override def exists(file: Path): Boolean =
    if (file.getName.endsWith(".log"))
      super.exists(file.getParent) && list(file.getParent).exists(_.getPath.getName.endsWith(".log"))
    else super.exists(file)
}
