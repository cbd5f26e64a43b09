package org.apache.spark.sql.lamina.wire

import java.util.concurrent.ThreadFactory

/** Threads that never keep a JVM alive and carry a name that says whose they are. */
private[lamina] object DaemonThreads {
  def apply(name: String): ThreadFactory = (body: Runnable) => make(name, body)

  def start(name: String)(body: => Unit): Thread = {
    val thread = make(name, () => body)
    thread.start()
    thread
  }

  private def make(name: String, body: Runnable): Thread = {
    val thread = new Thread(body, name)
    thread.setDaemon(true)
    // a thread made in a task would otherwise keep that query's class loader
    thread.setContextClassLoader(getClass.getClassLoader)
    thread
  }
}
