package org.apache.spark.sql.lamina

import java.io.IOException
import java.net.URI
import java.util.concurrent.{CountDownLatch, TimeUnit}

import org.apache.hadoop.fs.{FSDataInputStream, FSDataOutputStream, FileStatus, Path, RawLocalFileSystem}
import org.apache.hadoop.util.Progressable

/**
 * Local files under a scheme that only Hadoop knows; a test may hold the upload of a commit. As many a file system it has
 * no `getScheme`, which is optional.
 */
class HeldFileSystem extends RawLocalFileSystem {
  override def getUri: URI = URI.create(s"${HeldFileSystem.Scheme}:///")

  override def create(
      file: Path,
      overwrite: Boolean,
      bufferSize: Int,
      replication: Short,
      blockSize: Long,
      progress: Progressable
  ): FSDataOutputStream = {
    if (file.getName.contains(".lam.")) HeldFileSystem.uploads.foreach(_.arrive(file.getParent.getName))
    super.create(file, overwrite, bufferSize, replication, blockSize, progress)
  }

  override def listStatus(file: Path): Array[FileStatus] = {
    HeldFileSystem.onLook()
    super.listStatus(file)
  }

  override def open(file: Path, bufferSize: Int): FSDataInputStream = {
    HeldFileSystem.onLook()
    super.open(file, bufferSize)
  }

  override def getFileStatus(file: Path): FileStatus = {
    HeldFileSystem.onLook()
    super.getFileStatus(file)
  }
}

object HeldFileSystem {
  val Scheme = "held"

  /** Called by each look for files and at them. */
  @volatile var onLook: () => Unit = () => ()

  /** What holds the uploads of all instances; none by default. */
  @volatile var uploads: Option[Uploads] = None
}

/** Holds who arrives until it is let go. */
final class Gate extends (() => Unit) {
  private val (arrived, open) = (new CountDownLatch(1), new CountDownLatch(1))

  override def apply(): Unit = {
    arrived.countDown()
    if (!open.await(Gate.PatienceSeconds, TimeUnit.SECONDS)) throw new IOException("nobody let it go on")
  }

  /** Waits until somebody is held; whether there is somebody. */
  def isReached(): Boolean = arrived.await(Gate.PatienceSeconds, TimeUnit.SECONDS)

  def letGo(): Unit = open.countDown()
}

private object Gate {
  private val PatienceSeconds = 120L
}

/** One upload of each store in `names`, held from its start until it is told to go on or to fail. */
final class Uploads(names: String*) {
  import Uploads.PatienceSeconds

  private val arrived = new CountDownLatch(names.size)
  private val held = names.map(_ -> new CountDownLatch(1)).toMap
  @volatile private var failing = Set.empty[String]

  /** Called by the upload. A test that failed releases nothing, so it is not waited for for ever. */
  def arrive(name: String): Unit = {
    arrived.countDown()
    if (!held(name).await(PatienceSeconds, TimeUnit.SECONDS)) throw new IOException(s"the upload of $name was held")
    if (failing(name)) throw new IOException(s"the upload of $name shall fail")
  }

  /** Waits until all are under way; whether they are. */
  def allArrived(): Boolean = arrived.await(PatienceSeconds, TimeUnit.SECONDS)

  def release(name: String): Unit = held(name).countDown()

  def fail(name: String): Unit = {
    failing += name
    release(name)
  }
}

private object Uploads {
  private val PatienceSeconds = 30L
}
