package org.apache.spark.sql.lamina.wire

import java.io.IOException
import java.lang.reflect.InvocationHandler
import java.net.{InetAddress, SocketTimeoutException}
import java.util.concurrent.TimeUnit
import javax.net.SocketFactory

import org.json4s.JValue
import py4j.{
  CallbackClient,
  ClientServerConnection,
  Gateway,
  GatewayServer,
  Protocol => Py4JProtocol,
  Py4JClientConnection,
  Py4JException,
  PythonClient
}
import py4j.reflection.PythonProxyHandler

import org.apache.spark.sql.lamina.errors.LaminaError

/** The engine's control methods (docs/spec/wire.md). All texts are JSON. */
private[wire] trait EngineControl {
  def hello(json: String): String
  def openStore(json: String): String
  def begin(handle: Long, json: String): String
  def resolve(handle: Long, json: String): String
  def materialize(handle: Long, json: String): String
  def maintain(handle: Long, json: String): String
  def closeStore(handle: Long): String
  def cancel(requestId: Long): String
  def hurry(requestId: Long): String
  def stats(): String
  def shutdown(): String
}

/**
 * Calls the engine's control methods through Py4J, from any thread.
 *
 * @param timeoutMs how long one call may take
 */
private[wire] final class Control(port: Int, token: String, timeoutMs: Long) {
  import Control._

  private val client = new Client(port, token, math.min(timeoutMs, Int.MaxValue.toLong).toInt)
  private val gateway = new Gateway(null, client)
  client.setGateway(gateway)
  private val entryPoint: InvocationHandler = new PythonProxyHandler(Py4JProtocol.ENTRY_POINT_OBJECT_ID, gateway)

  /**
   * Calls `method` and returns its answer.
   *
   * @param args texts, JSON values, or integers
   * @throws LaminaError what the engine answered, `engine.deadline`, or `engine.protocol` where the call got no answer
   */
  def call(method: String, args: Seq[AnyRef]): JValue = {
    val target =
      methods.getOrElse(method, throw new IllegalArgumentException(s"the engine has no control method $method"))
    val values: Array[AnyRef] = args.map {
      case json: JValue => Protocol.text(json)
      case other => other
    }.toArray
    val result =
      try entryPoint.invoke(null, target, values)
      catch { case error: Py4JException => throw failed(method, error) }
    result match {
      case json: String => Protocol.answer(Protocol.parse(json))
      case other => throw new LaminaError(LaminaError.EngineProtocol, s"the control method $method answered $other")
    }
  }

  private def failed(method: String, error: Py4JException): LaminaError = {
    val causes = Iterator.iterate[Throwable](error)(_.getCause).takeWhile(_ != null).toList
    if (causes.exists(_.isInstanceOf[SocketTimeoutException]))
      new LaminaError(LaminaError.EngineDeadline, s"the control call $method had no answer after $timeoutMs ms", error)
    else
      new LaminaError(LaminaError.EngineProtocol, s"the control call $method failed: ${causes.last.getMessage}", error)
  }

  def close(): Unit = client.shutdown()
}

private[wire] object Control {

  /** Where the engine listens; the JDK's may be that of IPv6. */
  val Loopback = InetAddress.getByAddress("localhost", Array[Byte](127, 0, 0, 1))

  /** Connections that are kept while no call uses them. */
  private val MaxIdle = 16

  private val methods = classOf[EngineControl].getMethods.iterator.map(method => method.getName -> method).toMap

  // as PySpark does; failures reach the caller as exceptions
  GatewayServer.turnLoggingOff()

  /**
   * Py4J's client for Python's `ClientServer`, with its connections in a pool instead of one per thread.
   *
   * Python never calls back, so a connection need not belong to a thread; and one per thread would stay open after the
   * thread has ended. Each connection has a thread of its own in the engine.
   */
  private final class Client(port: Int, token: String, readTimeoutMs: Int)
      extends PythonClient(
        null,
        null,
        port,
        Loopback,
        CallbackClient.DEFAULT_MIN_CONNECTION_TIME,
        TimeUnit.SECONDS,
        SocketFactory.getDefault,
        null,
        false,
        readTimeoutMs,
        token
      ) {
    private var ended = false

    /** Connects without the client's lock: an engine that is stopped, or out of files, keeps nobody else waiting. */
    override protected def getConnectionLock(): Py4JClientConnection = {
      lock.lock()
      val idle =
        try connections.pollLast()
        finally lock.unlock()
      if (idle != null) idle
      else
        try connect()
        catch { case error: IOException => throw new Py4JException("no connection to the engine", error) }
    }

    private def connect(): Py4JClientConnection = {
      val socket = startClientSocket()
      // for the greeting, too
      socket.setSoTimeout(readTimeout)
      val connection = new ClientServerConnection(gateway, socket, null, this, null, readTimeout, authToken)
      connection.setInitiatedFromClient(true)
      connection.start()
      connection
    }

    /** Keeps as many as steady work needs: a burst, as when all stores of a query close, leaves no threads behind. */
    override protected def giveBackConnection(connection: Py4JClientConnection): Unit = {
      lock.lock()
      val keeps =
        try {
          val keeps = !ended && connections.size < MaxIdle
          if (keeps) connections.addLast(connection)
          keeps
        } finally lock.unlock()
      if (!keeps) connection.shutdown()
    }

    /** Closes the idle connections now, and those in use when they are given back. */
    override def shutdown(): Unit = {
      lock.lock()
      try ended = true
      finally lock.unlock()
      super.shutdown()
    }
  }
}
