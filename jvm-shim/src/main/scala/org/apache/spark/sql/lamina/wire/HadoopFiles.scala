package org.apache.spark.sql.lamina.wire

import java.io.IOException
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.channels.{ClosedChannelException, ServerSocketChannel, SocketChannel}
import java.nio.file.{Files, Path}
import java.util.concurrent.{ConcurrentHashMap, ThreadFactory}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.security.UserGroupInformation

import org.apache.spark.internal.Logging
import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * Lets the engine, and its maintenance process, use this JVM's Hadoop file systems, for URLs that Python has no file
 * system for (docs/spec/wire.md, "Hadoop files").
 *
 * The engine is the client: it connects to a socket in its private directory when it meets such a URL, and never
 * otherwise. Until then this is one thread that waits. File systems are used as the user whose task started the engine.
 */
private[wire] final class HadoopFiles private (
    val socket: Path,
    server: ServerSocketChannel,
    second: Option[PrivateDirectory],
    token: String,
    name: String,
    threads: ThreadFactory
) extends Logging {
  import HadoopFiles.AcceptPauseMs

  private val user = UserGroupInformation.getCurrentUser
  private val systems = new HadoopSystems
  private val connections = ConcurrentHashMap.newKeySet[SocketChannel]
  DaemonThreads.start(s"$name-hadoop")(accept())

  private def accept(): Unit =
    while (server.isOpen) {
      var accepted = Option.empty[SocketChannel]
      try {
        val channel = server.accept()
        accepted = Some(channel)
        connections.add(channel)
        threads.newThread(() => serve(channel)).start()
      } catch {
        case _: ClosedChannelException => ()
        case error: Throwable =>
          // out of file descriptors: those who wait go on waiting; out of threads: the engine connects again
          logError("a connection for Hadoop files could not be accepted", error)
          accepted.foreach(end)
          Thread.sleep(AcceptPauseMs)
      }
    }

  private def serve(channel: SocketChannel): Unit =
    try new HadoopConnection(channel, token, systems, user).serve()
    catch {
      case error: IOException => logDebug(s"a connection for Hadoop files ended: $error")
      // an error that leaves a thread ends an executor
      case NonFatal(error) => logWarning("a connection for Hadoop files failed", error)
    } finally end(channel)

  private def end(channel: SocketChannel): Unit = {
    connections.remove(channel)
    try channel.close()
    catch { case error: IOException => logDebug("a connection for Hadoop files was not closed", error) }
  }

  /** Ends all connections; called when the engine has ended. */
  def close(): Unit = {
    try server.close()
    catch { case error: IOException => logDebug("the socket for Hadoop files was not closed", error) }
    connections.asScala.foreach { channel =>
      try channel.close()
      catch { case _: IOException => () }
    }
    systems.close()
    second.foreach { directory =>
      try Files.deleteIfExists(socket)
      catch { case _: IOException => () }
      directory.delete(None)
    }
  }
}

private[wire] object HadoopFiles {
  private val AcceptPauseMs = 100L
  private val SocketName = "hadoop.sock"

  /** In bytes; the systems' limits are 107 and 103. */
  private val MaxSocketPath = 100

  /** Listens in the private directory of an engine, or in a second one where that one's path is too long. */
  def listen(directory: PrivateDirectory, token: String, name: String): HadoopFiles =
    listen(directory, token, name, DaemonThreads(s"$name-hadoop-connection"))

  /**
   * @param threads those that serve connections
   * @param fallback where the second directory is made
   */
  def listen(
      directory: PrivateDirectory,
      token: String,
      name: String,
      threads: ThreadFactory,
      fallback: String = "/tmp"
  ): HadoopFiles = {
    val wanted = directory.path.resolve(SocketName)
    val second =
      if (wanted.toString.getBytes.length <= MaxSocketPath) None else Some(secondDirectory(directory, fallback))
    val socket = second.fold(wanted)(_.path.resolve(SocketName))
    val server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)
    try server.bind(UnixDomainSocketAddress.of(socket))
    catch {
      case error: IOException =>
        server.close()
        second.foreach(_.delete(None))
        throw new LaminaError(LaminaError.EngineStart, s"no socket can be made at $socket ($error)", error)
    }
    new HadoopFiles(socket, server, second, token, name, threads)
  }

  private def secondDirectory(directory: PrivateDirectory, fallback: String): PrivateDirectory =
    try PrivateDirectory.create(fallback)
    catch {
      case error: LaminaError =>
        throw new LaminaError(
          LaminaError.EngineStart,
          s"java.io.tmpdir (${directory.path.getParent}) is too long for the path of a socket, and $fallback cannot be " +
            s"written (${error.getCause}); set java.io.tmpdir to a shorter directory",
          error
        )
    }
}
