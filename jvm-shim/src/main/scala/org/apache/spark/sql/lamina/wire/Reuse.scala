package org.apache.spark.sql.lamina.wire

import java.util.ArrayDeque

/** Something with buffers that one owner uses at a time, again and again. */
private[wire] trait Reusable {

  /** Ends one use: buffers that were much larger than needed give memory back. */
  def release(): Unit
  def free(): Unit

  /** Bytes that the buffers hold now. */
  def memoryBytes: Long
}

/** Keeps what is not in use for the next user, as long as all that lies idle holds at most `maxIdleBytes`. */
private[wire] final class Reuse[T <: Reusable](maxIdleBytes: Long, make: () => T) {
  private val idle = new ArrayDeque[T]
  private var idleBytes = 0L
  private var closed = false

  def use[R](body: T => R): R = {
    val one = take()
    try body(one)
    finally give(one)
  }

  private def take(): T = {
    val found = synchronized {
      Option(idle.pollLast()).map { one =>
        idleBytes -= one.memoryBytes
        one
      }
    }
    found.getOrElse(make())
  }

  private def give(one: T): Unit = {
    one.release()
    val keeps = synchronized {
      val keeps = !closed && idleBytes + one.memoryBytes <= maxIdleBytes
      if (keeps) {
        idle.addLast(one)
        idleBytes += one.memoryBytes
      }
      keeps
    }
    if (!keeps) one.free()
  }

  def close(): Unit = synchronized {
    closed = true
    idle.forEach(_.free())
    idle.clear()
    idleBytes = 0
  }
}
