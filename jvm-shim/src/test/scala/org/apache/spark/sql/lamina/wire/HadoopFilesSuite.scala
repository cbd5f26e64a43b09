package org.apache.spark.sql.lamina.wire

import java.io.IOException
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.ByteBuffer
import java.nio.channels.SocketChannel
import java.nio.charset.StandardCharsets.US_ASCII
import java.nio.file.Files
import java.util.concurrent.ThreadFactory
import java.util.concurrent.atomic.AtomicBoolean

import scala.concurrent.{Await, ExecutionContext, Future}
import scala.concurrent.duration._
import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError

/** Connections of the engine to this JVM's Hadoop file systems. */
class HadoopFilesSuite extends AnyFunSuite {
  private val token = "a" * 64

  /** What a connection answers to a greeting: the greeting, or nothing where it was closed. */
  private def greeting(files: HadoopFiles): Option[ByteBuffer] =
    Await.result(Future(connect(files))(ExecutionContext.global), 60.seconds)

  private def connect(files: HadoopFiles): Option[ByteBuffer] =
    Using.resource(SocketChannel.open(StandardProtocolFamily.UNIX)) { channel =>
      channel.connect(UnixDomainSocketAddress.of(files.socket))
      val answer = ByteBuffer.allocate(Protocol.greeting().remaining)
      try {
        channel.write(ByteBuffer.allocate(answer.capacity + token.length)
          .put(Protocol.greeting()).put(token.getBytes(US_ASCII)).flip())
        while (answer.hasRemaining && channel.read(answer) >= 0) {}
      } catch { case _: IOException => () }
      if (answer.hasRemaining) None else Some(answer.flip())
    }

  test("a connection for which there is no thread is closed, and the next one is served") {
    val refuses = new AtomicBoolean(true)
    val all = DaemonThreads("served")
    val threads: ThreadFactory = work =>
      if (refuses.getAndSet(false)) throw new OutOfMemoryError("unable to create native thread")
      else all.newThread(work)
    val directory = PrivateDirectory.create(System.getProperty("java.io.tmpdir"))
    val files = HadoopFiles.listen(directory, token, "test", threads)
    try {
      assert(greeting(files).isEmpty)
      assert(greeting(files).contains(Protocol.greeting()))
    } finally {
      files.close()
      directory.delete(None)
    }
  }

  test("where no path is short enough for a socket, what is told is the setting that makes it so") {
    val above = Files.createTempDirectory("lamina-test")
    val long = Files.createDirectory(above.resolve("x" * 100))
    val directory = PrivateDirectory.create(long.toString)
    try {
      val error = intercept[LaminaError] {
        HadoopFiles.listen(directory, token, "test", DaemonThreads("served"), fallback = s"$above/missing")
      }
      assert(error.kind == LaminaError.EngineStart)
      assert(error.text.contains(s"java.io.tmpdir ($long) is too long"))
      assert(error.text.contains(s"$above/missing cannot be written"))
    } finally {
      directory.delete(None)
      Files.delete(long)
      Files.delete(above)
    }
  }
}
