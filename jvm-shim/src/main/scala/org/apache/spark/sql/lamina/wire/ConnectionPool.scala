package org.apache.spark.sql.lamina.wire

import java.util.ArrayDeque
import java.util.concurrent.TimeUnit
import java.util.concurrent.locks.ReentrantLock

import scala.collection.mutable

import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * At most `limit` data connections; who wants one more waits.
 *
 * A request keeps its connection until its answer was read, which does not depend on anybody who waits here: tasks with
 * several stores never wait for one another's connections.
 *
 * Invariant: `open` counts idle connections, borrowed ones, and those being opened.
 */
private[wire] final class ConnectionPool(limit: Int, connect: Deadline => Connection) {
  private val lock = new ReentrantLock
  private val freed = lock.newCondition()
  private val idle = new ArrayDeque[Connection]
  private val borrowed = mutable.Set.empty[Connection]
  private var open = 0
  private var closed = false

  private def locked[T](body: => T): T = {
    lock.lock()
    try body
    finally lock.unlock()
  }

  /**
   * A connection for one request.
   *
   * @throws LaminaError `engine.deadline` if none gets free in time, `engine.lost` once the pool is closed
   */
  def borrow(deadline: Deadline): Connection = {
    val found = locked {
      var connection = take()
      while (connection.isEmpty && open >= limit) {
        if (!freed.await(deadline.remainingMs, TimeUnit.MILLISECONDS) && deadline.remainingMs == 0)
          throw new LaminaError(
            LaminaError.EngineDeadline,
            s"no connection to the engine got free within ${deadline.timeoutMs} ms; $open are in use " +
              "(spark.sql.streaming.stateStore.lamina.engine.connections)"
          )
        connection = take()
      }
      if (connection.isEmpty) open += 1
      connection
    }
    found.getOrElse(connectNew(deadline))
  }

  /** With the lock held. */
  private def take(): Option[Connection] = {
    if (closed) throw new LaminaError(LaminaError.EngineLost, "the engine process has ended")
    val connection = Option(idle.pollLast())
    connection.foreach(borrowed += _)
    connection
  }

  private def connectNew(deadline: Deadline): Connection = {
    val connection =
      try connect(deadline)
      catch {
        case error: Throwable =>
          locked {
            open -= 1
            freed.signal()
          }
          throw error
      }
    val late = locked {
      borrowed += connection
      closed
    }
    if (late) connection.close()
    connection
  }

  /** Gives a connection back after a complete answer. */
  def give(connection: Connection): Unit = {
    val keeps = locked {
      borrowed -= connection
      val keeps = !closed && connection.isOpen
      if (keeps) idle.addLast(connection) else open -= 1
      freed.signal()
      keeps
    }
    if (!keeps) connection.close()
  }

  /** Lets go of a connection that carries no further requests, and is its user's to close. */
  def release(connection: Connection): Unit = locked {
    borrowed -= connection
    open -= 1
    freed.signal()
  }

  /** Closes a connection on which no further request can follow. */
  def discard(connection: Connection): Unit = {
    connection.close()
    release(connection)
  }

  /** Connections open now, and those of them in use. */
  def counts: (Int, Int) = locked((open, borrowed.size))

  /** Closes all connections: requests on them fail, later ones too. */
  def close(): Unit = {
    val all = locked {
      closed = true
      val all = borrowed.toList ++ idle.toArray(Array.empty[Connection])
      open -= idle.size
      idle.clear()
      freed.signalAll()
      all
    }
    all.foreach(_.close())
  }
}
