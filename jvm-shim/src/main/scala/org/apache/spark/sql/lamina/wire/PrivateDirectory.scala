package org.apache.spark.sql.lamina.wire

import java.io.{IOException, UncheckedIOException}
import java.nio.file.{Files, LinkOption, Path, Paths}
import java.nio.file.attribute.{PosixFileAttributes, PosixFilePermissions}

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.spark.internal.Logging
import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * The directory of one engine, readable by this user only (0700), and its deletion.
 *
 * {{{
 * <tempDir>/lamina-<random>/           made here
 *     data.sock                        made by the engine, unless this path is too long for a socket
 * /tmp/<random>/data.sock              made by the engine if it is
 * }}}
 *
 * The engine deletes both when its standard input ends. Here they are deleted again, for an engine that was killed.
 */
private[wire] final class PrivateDirectory(val path: Path) extends Logging {

  /** Deletes the directory, and the one of `socket` if the engine had to make a second. Never fails. */
  def delete(socket: Option[Path]): Unit = {
    quietly(socket.foreach { file =>
      val parent = file.getParent
      if (parent != path && Files.isDirectory(parent, LinkOption.NOFOLLOW_LINKS) && isPrivate(parent)) {
        Files.deleteIfExists(file)
        Files.deleteIfExists(parent) // fails if anything else is in it: then it is not ours to empty
      }
    })
    quietly {
      if (Files.isDirectory(path, LinkOption.NOFOLLOW_LINKS)) {
        val files = Using.resource(Files.walk(path))(_.iterator.asScala.toList)
        files.reverse.foreach(Files.deleteIfExists(_))
      }
    }
  }

  private def isPrivate(directory: Path): Boolean = {
    val attributes = Files.readAttributes(directory, classOf[PosixFileAttributes], LinkOption.NOFOLLOW_LINKS)
    PosixFilePermissions.toString(attributes.permissions) == "rwx------" &&
    attributes.owner == Files.getOwner(path.getParent.resolve(path.getFileName), LinkOption.NOFOLLOW_LINKS)
  }

  private def quietly(body: => Unit): Unit =
    try body
    catch {
      // a walk wraps what happens to files that somebody else deletes meanwhile
      case error @ (_: IOException | _: UncheckedIOException) =>
        logDebug(s"cleaning up after the engine in $path: $error")
    }
}

private[wire] object PrivateDirectory {
  def create(tempDir: String): PrivateDirectory = {
    val permissions = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
    try new PrivateDirectory(
        Files.createTempDirectory(Paths.get(tempDir).toAbsolutePath, "lamina-", permissions)
      )
    catch {
      case error: IOException =>
        throw new LaminaError(
          LaminaError.EngineStart,
          s"no directory for the engine can be made in $tempDir ($error); set java.io.tmpdir to a directory that " +
            "exists and can be written",
          error
        )
    }
  }
}
