package org.apache.spark.sql.lamina.wire

import java.io.{ByteArrayOutputStream, IOException}
import java.net.URI
import java.nio.file.{FileAlreadyExistsException, Files, StandardOpenOption}
import java.util.UUID
import java.util.concurrent.{CountDownLatch, TimeUnit}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataInputStream, FSDataOutputStream, FSInputStream, Path, RawLocalFileSystem}
import org.apache.hadoop.security.AccessControlException
import org.apache.hadoop.util.Progressable

/**
 * Local files under another scheme, such as one which nobody but Hadoop, told by `fs.odd.impl`, has a file system for.
 * Where `fs.odd.times` is `ignored` or `refused`, nobody sets the time of a file, as with object stores. Where
 * `fs.odd.reads` is a number, files can be opened, and no byte from there on can be read. Where `fs.odd.deletions` is a
 * number, the first deletions wait until so many are under way, and fail where they are not.
 */
class OddFileSystem extends RawLocalFileSystem {
  private var initialized: URI = _

  override def initialize(uri: URI, conf: Configuration): Unit = {
    initialized = new URI(uri.getScheme, uri.getAuthority, "/", null, null)
    super.initialize(uri, conf)
  }

  override def getScheme: String = getUri.getScheme
  // the base class asks while it is made
  override def getUri: URI = Option(initialized).getOrElse(URI.create("odd:///"))

  override def open(path: Path, bufferBytes: Int): FSDataInputStream = {
    val file = super.open(path, bufferBytes)
    Option(getConf.get("fs.odd.reads")).fold(file)(upTo => new FSDataInputStream(new DeniedFrom(file, upTo.toLong)))
  }

  private lazy val deletions = new CountDownLatch(getConf.getInt("fs.odd.deletions", 0))

  override def delete(path: Path, recursive: Boolean): Boolean = {
    deletions.countDown()
    if (!deletions.await(30, TimeUnit.SECONDS)) throw new IOException(s"$path is deleted alone")
    super.delete(path, recursive)
  }

  override def setTimes(path: Path, modified: Long, used: Long): Unit = getConf.get("fs.odd.times") match {
    case "ignored" => ()
    case "refused" => throw new UnsupportedOperationException("setTimes")
    case _ => super.setTimes(path, modified, used)
  }
}

private class DeniedFrom(file: FSDataInputStream, first: Long) extends FSInputStream {
  override def seek(at: Long): Unit = file.seek(at)
  override def getPos: Long = file.getPos
  override def seekToNewSource(at: Long): Boolean = false
  override def read(): Int =
    if (getPos < first) file.read() else throw new AccessControlException(s"from $first on it is denied")
}

/**
 * The same with HDFS's rename, which in one step refuses, by answering false, where the target is there.
 *
 * Where `fs.odd.rival` is set, another machine publishes that text under each name that is not taken yet, right before
 * the rename and thus after whatever look came before it. Where `fs.odd.fails` is set, each rename answers false and does
 * nothing, as that of a file system in trouble.
 */
class OddHdfs extends OddFileSystem {
  override def rename(source: Path, target: Path): Boolean = {
    val file = pathToFile(target).toPath
    Option(getConf.get("fs.odd.rival")).filterNot(_ => Files.exists(file)).foreach(text =>
      Files.writeString(file, text)
    )
    try
      getConf.get("fs.odd.fails") == null && {
        Files.createLink(file, pathToFile(source).toPath)
        delete(source, false)
      }
    catch { case _: FileAlreadyExistsException => false }
  }
}

/**
 * The same with Google's way of making a file that may not replace another one: it appears whole when it is closed, which
 * fails where one is there by then. Where `fs.odd.rival` is set, another machine publishes that text right before that.
 */
class OddGoogle extends OddFileSystem {
  override def create(
      path: Path,
      overwrite: Boolean,
      bufferBytes: Int,
      replication: Short,
      blockBytes: Long,
      progress: Progressable
  ): FSDataOutputStream =
    if (overwrite) super.create(path, overwrite, bufferBytes, replication, blockBytes, progress)
    else new FSDataOutputStream(
      new ByteArrayOutputStream {
        override def close(): Unit = {
          val file = pathToFile(path).toPath
          Files.createDirectories(file.getParent)
          Option(getConf.get("fs.odd.rival")).foreach(Files.writeString(file, _))
          Files.write(file, toByteArray, StandardOpenOption.CREATE_NEW)
        }
      },
      null
    )
}

/** Serves Hadoop files until standard input ends: `<token>` is the argument, the socket's path the first line. */
object HadoopFilesServer {
  def main(arguments: Array[String]): Unit = {
    val directory = PrivateDirectory.create(System.getProperty("java.io.tmpdir"))
    val files = HadoopFiles.listen(directory, arguments(0), s"test-${UUID.randomUUID}")
    println(files.socket)
    while (System.in.read() >= 0) {}
    files.close()
    directory.delete(None)
  }
}
