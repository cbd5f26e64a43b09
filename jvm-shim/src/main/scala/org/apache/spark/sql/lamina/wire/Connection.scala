package org.apache.spark.sql.lamina.wire

import java.io.{EOFException, IOException}
import java.net.{StandardProtocolFamily, StandardSocketOptions, UnixDomainSocketAddress}
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.channels.{ClosedByInterruptException, SocketChannel}
import java.nio.charset.StandardCharsets.{US_ASCII, UTF_8}
import java.nio.file.Path

import scala.collection.mutable.ArrayBuffer

import org.json4s.JValue

import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * One data connection: a blocking unix socket that carries one request at a time.
 *
 * Used by one thread at a time; `expire`, `close` and `end` may come from others. A thread that is interrupted while it
 * sends or receives closes the connection, as the JDK lays down.
 */
private[wire] final class Connection private (channel: SocketChannel) extends ByteSink with ByteSource {
  private val lengthBytes = ByteBuffer.allocateDirect(4).order(ByteOrder.LITTLE_ENDIAN)
  private val unsent = ArrayBuffer.empty[ByteBuffer]
  private var current = 0L
  private var expired = false

  def isOpen: Boolean = channel.isOpen

  /** Says which request the connection works on from now on. */
  def begin(request: Long): Unit = synchronized { current = request }

  /** Says that the request has ended; its deadline does not matter any more. */
  def end(): Unit = synchronized { current = 0L }

  /** The deadline of `request` has passed: whoever waits for it wakes up with an error. */
  def expire(request: Long): Unit = {
    val closes = synchronized {
      if (current == request) expired = true
      current == request
    }
    if (closes) close()
  }

  def hasExpired: Boolean = synchronized(expired)

  override def add(bytes: ByteBuffer): Unit = if (bytes.hasRemaining) unsent += bytes

  override def flush(): Unit = {
    val parts = unsent.toArray
    unsent.clear()
    var first = 0
    while (first < parts.length) {
      channel.write(parts, first, parts.length - first)
      while (first < parts.length && !parts(first).hasRemaining) first += 1
    }
  }

  override def readFully(to: ByteBuffer): Unit =
    while (to.hasRemaining)
      if (channel.read(to) < 0) throw new EOFException("the engine closed the connection")

  /** The header of the next response. */
  def readHeader(): JValue = {
    lengthBytes.clear()
    readFully(lengthBytes)
    val length = lengthBytes.getInt(0)
    if (length < 0 || length > Protocol.MaxHeaderBytes)
      throw new LaminaError(LaminaError.EngineProtocol, s"the engine sent a header of $length bytes")
    val json = ByteBuffer.allocate(length)
    readFully(json)
    Protocol.parse(new String(json.array(), UTF_8))
  }

  def close(): Unit =
    try channel.close()
    catch { case _: IOException => () }

  /** Says who we are; the engine answers once it has a place for the connection. */
  def greet(token: String): Unit = {
    add(Protocol.greeting())
    add(ByteBuffer.wrap(token.getBytes(US_ASCII)))
    flush()
    val answer = ByteBuffer.allocate(Protocol.greeting().remaining())
    readFully(answer)
    if (answer.flip() != Protocol.greeting())
      throw new LaminaError(LaminaError.EngineProtocol, "the engine greeted with other bytes than this wire protocol's")
  }
}

private[wire] object Connection {

  /** Wanted size of the socket's buffers; the system may allow less. */
  private val SocketBytes = 1 << 20

  /** A connection that has still to `greet`. */
  def open(socket: Path): Connection = {
    val channel = SocketChannel.open(StandardProtocolFamily.UNIX)
    try {
      channel.setOption[Integer](StandardSocketOptions.SO_SNDBUF, SocketBytes)
      channel.setOption[Integer](StandardSocketOptions.SO_RCVBUF, SocketBytes)
      channel.connect(UnixDomainSocketAddress.of(socket))
      new Connection(channel)
    } catch {
      case error: Throwable =>
        channel.close()
        throw error
    }
  }

  def isInterruption(error: Throwable): Boolean = error.isInstanceOf[ClosedByInterruptException]
}
