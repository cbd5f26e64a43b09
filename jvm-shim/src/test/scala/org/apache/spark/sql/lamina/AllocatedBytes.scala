package org.apache.spark.sql.lamina

import java.lang.management.ManagementFactory

import com.sun.management.ThreadMXBean

/** What calls allocate on the Java heap, in bytes a call, as the JVM counts it for the calling thread. */
private[lamina] object AllocatedBytes {
  private val threads = ManagementFactory.getThreadMXBean.asInstanceOf[ThreadMXBean]
  private val Calls = 1000

  def of(call: => Unit): Long = {
    def allocated: Long = threads.getThreadAllocatedBytes(Thread.currentThread.getId)
    call // what the first call alone needs is no part of it
    val before = allocated
    var i = 0
    while (i < Calls) {
      call
      i += 1
    }
    (allocated - before) / Calls
  }
}
