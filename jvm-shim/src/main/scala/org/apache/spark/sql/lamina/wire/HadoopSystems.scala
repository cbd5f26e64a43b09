package org.apache.spark.sql.lamina.wire

import java.util.concurrent.{ExecutionException, FutureTask}

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.hadoop.fs.{FileSystem, Path, UnsupportedFileSystemException}

import org.apache.spark.deploy.SparkHadoopUtil
import org.apache.spark.sql.lamina.StoreSettings
import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * Hadoop file systems by URL and configuration. Hadoop's own cache tells them apart by scheme, host and user only, and
 * would hand one query the credentials of another.
 *
 * The latest are kept, and older ones as long as somebody uses them: where a session's token is among the keys, each
 * restart of a query has another one. To open one may take long, and keeps nobody waiting who wants another.
 */
private[wire] final class HadoopSystems {
  import HadoopSystems._

  // of the task that started the engine: it knows the jars of spark.jars, as connections' threads do not
  private val classes = Option(Thread.currentThread.getContextClassLoader).getOrElse(getClass.getClassLoader)

  /** By their use, the latest one last. */
  private val places = new mutable.LinkedHashMap[Key, Place]

  /**
   * The file system of `root`, configured as this JVM is and with `keys`; to be released.
   *
   * @throws LaminaError `storage.scheme` where Hadoop has none
   */
  def use(root: Path, keys: Map[String, String]): Used = {
    val key = (s"${root.toUri.getScheme}://${Option(root.toUri.getAuthority).getOrElse("")}", keys)
    val (place, old) = synchronized {
      val place = places.remove(key).getOrElse(new Place(new FutureTask(() => open(root, keys))))
      places(key) = place
      place.users += 1
      (place, places.keysIterator.take(places.size - MostKept).toList.flatMap(places.remove).filter(_.users == 0))
    }
    old.foreach(_.close())
    // whoever comes first opens it, in its own thread; the others wait for that
    place.opening.run()
    try new Used(this, key, place, place.opening.get())
    catch {
      case error: Throwable =>
        // the next one tries again
        release(key, place, isBroken = true)
        throw (error match {
          case failed: ExecutionException => failed.getCause
          case other => other
        })
    }
  }

  private def release(key: Key, place: Place, isBroken: Boolean): Unit = {
    val isLast = synchronized {
      place.users -= 1
      if (isBroken && places.get(key).contains(place)) places.remove(key)
      place.users == 0 && !places.get(key).contains(place)
    }
    if (isLast) place.close()
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
        throw new LaminaError(
          LaminaError.StorageScheme,
          s"neither Python nor Hadoop has a file system for $root (${error.getMessage}); put its jar on Spark's " +
            "class path, or install the package of fsspec",
          error
        )
    }
  }

  /** Closes all of them, used or not; called when the engine has ended. */
  def close(): Unit = {
    val all = synchronized {
      val all = places.values.toList
      places.clear()
      all
    }
    all.foreach(_.close())
  }
}

private[wire] object HadoopSystems {

  /** As many as Python keeps of its own (`file_systems.py`). */
  val MostKept = 8

  private type Key = (String, Map[String, String])

  /** One file system, and how many use it, which the lock of all is for. */
  private final class Place(val opening: FutureTask[FileSystem]) {
    var users = 0

    def close(): Unit =
      if (opening.isDone) {
        try opening.get().close()
        // of another one than who closes it is asking for
        catch { case NonFatal(_) | _: InterruptedException => () }
      }
  }

  /** A file system that somebody uses. */
  final class Used private[HadoopSystems] (
      systems: HadoopSystems,
      key: Key,
      place: Place,
      val system: FileSystem
  ) {
    def release(): Unit = systems.release(key, place, isBroken = false)
  }
}
