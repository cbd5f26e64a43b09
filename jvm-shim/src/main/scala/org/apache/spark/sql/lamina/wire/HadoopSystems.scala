package org.apache.spark.sql.lamina.wire

import java.io.IOException
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import org.apache.hadoop.fs.{FileSystem, Path, UnsupportedFileSystemException}

import org.apache.spark.deploy.SparkHadoopUtil
import org.apache.spark.sql.lamina.StoreSettings
import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * Hadoop file systems by URL and configuration. Hadoop's own cache tells them apart by scheme, host and user only, and
 * would hand one query the credentials of another.
 */
private[wire] final class HadoopSystems {
  // of the task that started the engine: it knows the jars of spark.jars, as connections' threads do not
  private val classes = Option(Thread.currentThread.getContextClassLoader).getOrElse(getClass.getClassLoader)
  private val systems = new ConcurrentHashMap[(String, Map[String, String]), FileSystem]

  /**
   * The file system of `root`, configured as this JVM is and with `keys`.
   *
   * @throws LaminaError `storage.scheme` where Hadoop has none
   */
  def get(root: Path, keys: Map[String, String]): FileSystem = {
    val uri = root.toUri
    val key = (s"${uri.getScheme}://${Option(uri.getAuthority).getOrElse("")}", keys)
    try systems.computeIfAbsent(key, _ => open(root, keys))
    catch { case failed: HadoopSystems.Failed => throw failed.cause }
  }

  private def open(root: Path, keys: Map[String, String]): FileSystem = {
    val conf = SparkHadoopUtil.get.newConfiguration(StoreSettings.sparkConf)
    keys.foreach { case (name, value) => conf.set(name, value) }
    conf.setClassLoader(classes)
    try {
      val uri = if (root.toUri.getScheme == null) FileSystem.getDefaultUri(conf) else root.toUri
      FileSystem.newInstance(uri, conf)
    } catch {
      case error: UnsupportedFileSystemException =>
        throw new HadoopSystems.Failed(
          new LaminaError(
            LaminaError.StorageScheme,
            s"neither Python nor Hadoop has a file system for $root (${error.getMessage}); put its jar on Spark's " +
              "class path, or install the package of fsspec",
            error
          )
        )
      case error: Exception => throw new HadoopSystems.Failed(error)
    }
  }

  def close(): Unit = {
    systems.values.asScala.foreach { system =>
      try system.close()
      catch { case _: IOException => () }
    }
    systems.clear()
  }
}

private[wire] object HadoopSystems {
  private final class Failed(val cause: Exception) extends RuntimeException(cause)
}
